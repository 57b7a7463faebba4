//! The canvas of a chart: the title, an area for the chart, and the legend to its right.

use plotters::coord::Shift;
use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{Labels, Outcome, color};

/// Size of title and chart in pixels, without the legend.
pub const SIZE: (u32, u32) = (760, 420);
/// Line height of the legend.
const LINE: i32 = 18;
/// Most lines of a legend.
const MAX_NAMES: usize = 20;
/// Approximate width of a letter: in the legend, and for each point of the title's font size.
const LETTER: f64 = 6.5;
const LETTER_A_POINT: f64 = 0.55;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The parts of a drawing.
pub struct Canvas<'a> {
    /// Where the chart is drawn.
    pub chart: Area<'a>,
    legend: Area<'a>,
    pub all: Area<'a>,
}

impl<'a> Canvas<'a> {
    /// An empty canvas with a title and room for a legend with these names. A single name has no legend.
    pub fn new(
        text: &'a mut String,
        labels: &Labels,
        names: &[&str],
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
        let beside = if names.len() > 1 { 40 + (longest as f64 * LETTER).ceil() as u32 } else { 0 };
        let all = SVGBackend::with_string(text, (SIZE.0 + beside, SIZE.1)).into_drawing_area();
        all.fill(&WHITE)?;
        let letters = labels.title.chars().count().max(1) as f64;
        let fitting = f64::from(SIZE.0 + beside) / letters / LETTER_A_POINT;
        let below = all.titled(&labels.title, ("sans-serif", fitting.clamp(8.0, 17.0)))?;
        let (chart, legend) = below.split_horizontally(SIZE.0);
        Ok(Self { chart, legend, all })
    }

    /// Draws the legend: a sample and a name each.
    pub fn name_all<S>(&self, names: &[&str], sample: &dyn Fn((i32, i32), RGBAColor) -> S) -> Outcome
    where
        S: Drawable<SVGBackend<'a>>,
        for<'b> &'b S: PointCollection<'b, (i32, i32)>,
    {
        if names.len() < 2 {
            return Ok(());
        }
        // The last line counts the names without room.
        let shown = if names.len() > MAX_NAMES { MAX_NAMES - 1 } else { names.len() };
        for (line, name) in names.iter().take(shown).enumerate() {
            self.legend.draw(&sample((2, middle_of(line)), color(line)))?;
            self.write(line, (*name).to_owned())?;
        }
        if shown < names.len() {
            self.write(shown, format!("and {} more", names.len() - shown))?;
        }
        Ok(())
    }

    fn write(&self, line: usize, text: String) -> Outcome {
        let font = ("sans-serif", 12).into_text_style(&self.legend).pos(Pos::new(HPos::Left, VPos::Center));
        Ok(self.legend.draw(&Text::new(text, (22, middle_of(line)), font))?)
    }
}

/// The vertical centre of a line of the legend.
fn middle_of(line: usize) -> i32 {
    24 + line as i32 * LINE
}
