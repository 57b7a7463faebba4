//! What a drawing is drawn on: a title, room for a chart, and beside it, where it hides nothing, the legend.

use plotters::coord::Shift;
use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{Labels, Outcome};

/// Room for title and chart in pixels; a legend is beside it.
pub const SIZE: (u32, u32) = (760, 420);
/// From one name of the legend to the next.
const LINE: i32 = 18;
/// Most lines of a legend: what there is room for beside the chart.
const MAX_NAMES: usize = 20;
/// About how wide a letter is, of the legend and, per point of its size, of the title.
const LETTER: f64 = 6.5;
const LETTER_A_POINT: f64 = 0.55;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The parts of a drawing.
pub struct Sheet<'a> {
    /// Where the chart is drawn.
    pub chart: Area<'a>,
    legend: Area<'a>,
    pub all: Area<'a>,
}

impl<'a> Sheet<'a> {
    /// An empty sheet with a title, and as much room for these names as they take; one alone needs none.
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

    /// Writes the names, each behind a sample of its colour; one alone is not written.
    pub fn name_all<S>(&self, names: &[&str], sample: &dyn Fn((i32, i32), RGBAColor) -> S) -> Outcome
    where
        S: Drawable<SVGBackend<'a>>,
        for<'b> &'b S: PointCollection<'b, (i32, i32)>,
    {
        if names.len() < 2 {
            return Ok(());
        }
        // Of too many the last line counts what is left.
        let shown = if names.len() > MAX_NAMES { MAX_NAMES - 1 } else { names.len() };
        for (line, name) in names.iter().take(shown).enumerate() {
            self.legend.draw(&sample((2, middle_of(line)), Palette99::pick(line).to_rgba()))?;
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

/// How far down a line of the legend is.
fn middle_of(line: usize) -> i32 {
    24 + line as i32 * LINE
}
