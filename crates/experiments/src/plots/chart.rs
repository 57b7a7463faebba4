//! Draws one chart as SVG: lines over a numeric axis, or bars with error bars.

use std::ops::Range;

use plotters::coord::ranged1d::IntoSegmentedCoord;
use plotters::prelude::*;

use super::canvas::Canvas;
use crate::scenario::Event;

/// Lines with more points have no circles: they are series over time.
const MARKED: usize = 40;
/// Most lines of a chart.
pub const MAX_LINES: usize = 12;
/// Most events that a chart marks, and most that it names.
const MAX_EVENTS: usize = 50;
const MAX_NAMED: usize = 12;
/// The colour of events, which no line has.
const EVENT: RGBColor = RGBColor(200, 0, 0);

/// Colours of lines and bars: Okabe and Ito's, which people with colour blindness tell apart, and four more.
const COLORS: [RGBColor; MAX_LINES] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(153, 136, 0),
    RGBColor(136, 34, 85),
    RGBColor(51, 34, 136),
    RGBColor(17, 119, 51),
    RGBColor(136, 136, 136),
];
/// Dashes of lines, in the same order; the first is solid.
const DASHES: [&str; 5] = ["", "7 3", "2 2", "9 3 2 3", "14 4"];

/// The colour of a line or bar; bars repeat them.
pub fn color(index: usize) -> RGBAColor {
    COLORS[index % COLORS.len()].to_rgba()
}

/// Adds dashes to the lines of a chart: plotters would draw each dash as an element of its own.
fn dashed(mut svg: String) -> String {
    let RGBColor(red, green, blue) = EVENT;
    let event = format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"");
    svg = svg.replace(&event, &format!("{event} stroke-dasharray=\"4 3\""));
    for (index, RGBColor(red, green, blue)) in COLORS.iter().enumerate() {
        let dash = DASHES[index % DASHES.len()];
        if !dash.is_empty() {
            let stroke = format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\" stroke-width=\"2\"");
            svg = svg.replace(&stroke, &format!("{stroke} stroke-dasharray=\"{dash}\""));
        }
    }
    svg
}

/// A point of a line: where, how much, and how far it may be from that (0 for no error bar).
pub type Point = (f64, f64, f64);

/// Titles of a chart and of its axes, and its marks.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    pub title: String,
    pub x: String,
    pub y: String,
    /// Only with time as the x axis, which then begins at zero.
    pub marks: Option<Marks>,
}

/// Times that a chart marks, in the unit of its x axis.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// The end of the warm-up; 0 without one.
    pub warm_up: f64,
    pub events: Vec<Event>,
}

impl Marks {
    /// The first events on an axis.
    fn events_in(&self, x: &Range<f64>) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| x.contains(&event.at)).take(MAX_EVENTS)
    }

    fn names_events(&self, x: &Range<f64>) -> bool {
        (1..=MAX_NAMED).contains(&self.events_in(x).count())
    }

    /// A grey area until the end of the warm-up.
    fn shade(&self, (x, y): (&Range<f64>, &Range<f64>)) -> Option<Rectangle<(f64, f64)>> {
        let corners = [(x.start, y.start), (self.warm_up.min(x.end), y.end)];
        (self.warm_up > x.start).then(|| Rectangle::new(corners, BLACK.mix(0.08).filled()))
    }

    /// The names of the warm-up and of each event, next to their lines. Many events have no names.
    fn names(&self, (x, y): (&Range<f64>, &Range<f64>)) -> Vec<Text<'static, (f64, f64), String>> {
        let font = ("sans-serif", 10).into_font().color(&BLACK.mix(0.7));
        let upright = font.transform(FontTransform::Rotate90);
        let gap = (x.end - x.start) * 0.004;
        let mut names = Vec::new();
        if self.warm_up > x.start {
            names.push(Text::new("warm-up".to_owned(), (x.start + gap, y.end), font));
        }
        if self.names_events(x) {
            let place = |at: f64| (at + gap * 4.0, y.end);
            names.extend(
                self.events_in(x)
                    .map(|event| Text::new(event.what.clone(), place(event.at), upright.clone())),
            );
        }
        names
    }
}

/// A line and its name.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    pub name: String,
    /// A NaN is a gap in the line.
    pub points: Vec<Point>,
    /// The points are corners of steps, not measurements, so they have no circles.
    pub are_corners: bool,
}

/// A group of bars: one for each name of the legend, in its order.
pub struct Bars {
    pub name: String,
    pub values: Vec<Option<(f64, f64)>>,
}

type Drawn = Result<String, String>;
pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Lines, with error bars where points have them. At most [`MAX_LINES`] are drawn; the title says so.
pub fn lines(labels: &Labels, curves: &[Curve]) -> Drawn {
    let shown = &curves[..curves.len().min(MAX_LINES)];
    let mut labels = labels.clone();
    if shown.len() < curves.len() {
        labels.title.push_str(&format!(" (the first {MAX_LINES} of {})", curves.len()));
    }
    let points = || shown.iter().flat_map(|curve| &curve.points).filter(|point| point.1.is_finite());
    let mut x = span(points().map(|point| point.0), false);
    if labels.marks.is_some() {
        x.start = 0.0;
    }
    let mut y = span(points().flat_map(|point| [point.1 - point.2, point.1 + point.2]), true);
    if labels.marks.as_ref().is_some_and(|marks| marks.names_events(&x)) {
        // Room for the names.
        y.end += (y.end - y.start) * 0.15;
    }
    let mut text = String::new();
    draw_lines(&mut text, &labels, shown, (x, y)).map_err(|error| error.to_string())?;
    Ok(dashed(text))
}

fn draw_lines(
    text: &mut String,
    labels: &Labels,
    curves: &[Curve],
    (x, y): (Range<f64>, Range<f64>),
) -> Outcome {
    let names: Vec<&str> = curves.iter().map(|curve| curve.name.as_str()).collect();
    let canvas = Canvas::new(text, labels, &names)?;
    let mut chart = ChartBuilder::on(&canvas.chart)
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(56)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(&labels.x)
        .y_desc(&labels.y)
        .x_label_formatter(&|value| tick(*value, &x))
        .y_label_formatter(&|value| tick(*value, &y))
        .draw()?;
    if let Some(marks) = &labels.marks {
        chart.draw_series(marks.shade((&x, &y)))?;
        chart.draw_series(
            marks
                .events_in(&x)
                .map(|event| PathElement::new([(event.at, y.start), (event.at, y.end)], EVENT.to_rgba())),
        )?;
        chart.draw_series(marks.names((&x, &y)))?;
    }
    for (index, curve) in curves.iter().enumerate() {
        let color = color(index);
        let style = color.stroke_width(2);
        for stretch in stretches(&curve.points) {
            chart.draw_series(LineSeries::new(stretch.iter().map(|point| (point.0, point.1)), style))?;
            // A point without neighbours has no line.
            let is_marked = curve.points.len() <= MARKED || stretch.len() == 1;
            if is_marked && !curve.are_corners {
                let mark = |point: &Point| Circle::new((point.0, point.1), 3, color.filled());
                chart.draw_series(stretch.iter().filter(|point| point.2 <= 0.0).map(mark))?;
            }
            let bars = stretch.iter().filter(|point| point.2 > 0.0);
            chart.draw_series(bars.map(|(x, y, error)| {
                ErrorBar::new_vertical(*x, y - error, *y, y + error, color.filled(), 8)
            }))?;
        }
    }
    canvas
        .name_all(&names, &|(x, y), color| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(2)))?;
    canvas.all.present()?;
    Ok(())
}

/// Bars in groups, with error bars; each name of the legend has a colour.
pub fn bars(labels: &Labels, legend: &[String], groups: &[Bars]) -> Drawn {
    if groups.is_empty() {
        return lines(labels, &[]);
    }
    let mut text = String::new();
    draw_bars(&mut text, labels, legend, groups).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw_bars(text: &mut String, labels: &Labels, legend: &[String], groups: &[Bars]) -> Outcome {
    let tops =
        groups.iter().flat_map(|group| group.values.iter().flatten()).map(|(mean, error)| mean + error);
    let y = span(tops, true);
    let names: Vec<&str> = legend.iter().map(String::as_str).collect();
    let canvas = Canvas::new(text, labels, &names)?;
    let count = groups.len() as i32;
    let mut chart = ChartBuilder::on(&canvas.chart)
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(56)
        .build_cartesian_2d((0..count - 1).into_segmented(), y.clone())?
        .set_secondary_coord(0.0..f64::from(count), y.clone());
    let name = |place: &SegmentValue<i32>| match place {
        SegmentValue::CenterOf(group) => {
            groups.get(*group as usize).map_or(String::new(), |group| group.name.clone())
        }
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(&labels.x)
        .y_desc(&labels.y)
        .x_labels(groups.len().min(24))
        .x_label_formatter(&name)
        .y_label_formatter(&|value| tick(*value, &y))
        .draw()?;
    let width = 0.8 / legend.len().max(1) as f64;
    for index in 0..legend.len() {
        let color = color(index);
        let of_it: Vec<(f64, f64, f64)> = groups
            .iter()
            .enumerate()
            .filter_map(|(group, bars)| {
                let (mean, error) = (*bars.values.get(index)?)?;
                Some((group as f64 + 0.1 + width * index as f64, mean, error))
            })
            .collect();
        let rectangles = of_it.iter().map(|(left, mean, _)| {
            Rectangle::new([(*left, 0.0), (left + width * 0.92, *mean)], color.mix(0.75).filled())
        });
        chart.draw_secondary_series(rectangles)?;
        let errors = of_it.iter().filter(|bar| bar.2 > 0.0).map(|(left, mean, error)| {
            let middle = left + width * 0.46;
            ErrorBar::new_vertical(middle, mean - error, *mean, mean + error, BLACK.filled(), 8)
        });
        chart.draw_secondary_series(errors)?;
    }
    canvas.name_all(&names, &|(x, y), color| {
        Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.mix(0.75).filled())
    })?;
    canvas.all.present()?;
    Ok(())
}

/// Runs of points without a gap.
fn stretches(points: &[Point]) -> Vec<&[Point]> {
    points.split(|point| !point.1.is_finite()).filter(|stretch| !stretch.is_empty()).collect()
}

/// The range of some values with a little room; from zero on where `from_zero` and none is below. Values that hardly differ
/// get an axis of a hundredth of their size.
fn span(values: impl Iterator<Item = f64>, from_zero: bool) -> Range<f64> {
    let (mut least, mut most) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
    if least > most {
        (least, most) = (0.0, 1.0);
    }
    let mut room = (most - least) * if from_zero { 0.08 } else { 0.0 };
    if from_zero && least >= 0.0 {
        (least, room) = (0.0, most * 0.08);
    }
    if least == most {
        room = least.abs().max(1.0) * 0.5;
    } else if most - least < most.abs() * 0.01 {
        room = room.max(most.abs() * 0.005);
    }
    let start = if least >= 0.0 { (least - room).max(0.0) } else { least - room };
    (if from_zero && least == 0.0 { 0.0 } else { start })..most + room
}

/// The label of a tick, with enough decimals to distinguish ten ticks of the axis.
fn tick(value: f64, axis: &Range<f64>) -> String {
    let step = (axis.end - axis.start) / 10.0;
    let decimals = (-step.log10()).ceil().clamp(0.0, 9.0) as usize;
    let text = format!("{value:.decimals$}");
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::SIZE;
    use super::*;

    fn labels() -> Labels {
        Labels { title: "a title".into(), x: "s".into(), y: "Mbit/s".into(), ..Labels::default() }
    }

    #[test]
    fn lines_with_gaps_and_error_bars_become_svg_with_a_legend() {
        let mut points = vec![(0.0, 1.0, 0.0), (0.5, 2.0, 0.1), (1.0, f64::NAN, 0.0)];
        points.extend([(2.0, 3.0, 0.5), (3.0, 2.0, 0.0)]);
        let curve = |name: &str| Curve { name: name.into(), points: points.clone(), ..Curve::default() };
        let text = lines(&labels(), &[curve("first"), curve("second")]).unwrap();
        for part in ["<svg", "</svg>", "a title", "first", "second", "Mbit/s"] {
            assert!(text.contains(part), "{part}");
        }
        assert_eq!(stretches(&points).iter().map(|stretch| stretch.len()).collect::<Vec<_>>(), [2, 2]);
        let many: Vec<Curve> = (0..20).map(|number| curve(&format!("line {number}"))).collect();
        let text = lines(&labels(), &many).unwrap();
        assert!(text.contains("(the first 12 of 20)") && !text.contains("line 12"));
        // One mark for each of the four points, with error bars or without.
        let marks = |curve| lines(&labels(), &[curve]).unwrap().matches("<circle").count();
        assert_eq!(marks(curve("first")), 4);
        let exact =
            |are_corners| Curve { points: vec![(0.0, 1.0, 0.0), (1.0, 1.0, 0.0)], are_corners, ..curve("x") };
        assert_eq!((marks(exact(false)), marks(exact(true))), (2, 0));
    }

    #[test]
    fn the_legend_lies_beside_what_is_drawn() {
        let curve = |name: &str| Curve {
            name: name.into(),
            points: (0..9).map(|x| (x.into(), x.into(), 0.0)).collect(),
            ..Curve::default()
        };
        let width = |text: &str| -> u32 {
            text.split_once("width=\"").unwrap().1.split_once('"').unwrap().0.parse().unwrap()
        };
        let place_of = |text: &str, name: &str| -> u32 {
            let head = &text[..text.find(&format!(">\n{name}\n")).unwrap()];
            head.rsplit_once(" x=\"").unwrap().1.split_once('"').unwrap().0.parse().unwrap()
        };
        let alone = lines(&labels(), &[curve("alone")]).unwrap();
        assert!(width(&alone) == SIZE.0 && !alone.contains("alone"), "one line needs no name");
        let text = lines(&labels(), &[curve("first"), curve("flow.M.path2.goodput_mbit_s")]).unwrap();
        assert!(place_of(&text, "first") > SIZE.0);
        let place = place_of(&text, "flow.M.path2.goodput_mbit_s");
        assert!(place > SIZE.0 && width(&text) > place + 27 * 6, "{place} of {}", width(&text));
        let legend: Vec<String> = (0..30).map(|number| format!("bar {number}")).collect();
        let groups = [Bars { name: "M".into(), values: vec![Some((1.0, 0.0)); 30] }];
        let text = bars(&labels(), &legend, &groups).unwrap();
        assert!(place_of(&text, "bar 0") > SIZE.0 && place_of(&text, "and 11 more") > SIZE.0);
    }

    #[test]
    fn bars_stand_where_there_are_values() {
        let legend = ["lia".to_owned(), "ewtcp".to_owned()];
        let groups = [
            Bars { name: "M".into(), values: vec![Some((3.0, 0.2)), Some((2.0, 0.0))] },
            Bars { name: "S".into(), values: vec![None, Some((1.0, 0.1))] },
        ];
        let text = bars(&labels(), &legend, &groups).unwrap();
        for part in ["<svg", "lia", "ewtcp", ">\nM\n", ">\nS\n"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn ticks_of_an_axis_differ() {
        for axis in [0.0..1.0, 0.97..1.0, 1.0..1.08, 9.0..9.5, 0.0..3e-6, 0.0..20_000.0] {
            let step = (axis.end - axis.start) / 10.0;
            let labels: Vec<String> =
                (0..=10).map(|n| tick(axis.start + f64::from(n) * step, &axis)).collect();
            assert!(labels.windows(2).all(|two| two[0] != two[1]), "{labels:?}");
        }
        assert_eq!(
            [tick(0.5, &(0.0..1.0)), tick(-1e-12, &(-1.0..1.0)), tick(20.0, &(0.0..50.0))],
            ["0.5", "0", "20"]
        );
    }

    #[test]
    fn lines_differ_in_dashes_and_the_warm_up_and_events_are_marked() {
        let curve = |name: &str| Curve {
            name: name.into(),
            points: vec![(0.0, 1.0, 0.0), (9.0, 2.0, 0.0)],
            are_corners: true,
        };
        let plain = lines(&labels(), &[curve("a"), curve("b")]).unwrap();
        // The second line, and its sample in the legend.
        assert_eq!(plain.matches("stroke-dasharray=\"7 3\"").count(), 2, "{plain}");
        let event = |at: u32| Event { at: at.into(), what: format!("event {at}") };
        let marked = |marks: Marks| {
            let text = lines(&Labels { marks: Some(marks), ..labels() }, &[curve("a"), curve("b")]).unwrap();
            let count = |part: &str| text.matches(part).count();
            (count("stroke-dasharray=\"4 3\""), count(">\nwarm-up\n"), count(">\nevent "), count("<rect"))
        };
        let few = Marks { warm_up: 2.0, events: [4, 5, 99].map(event).to_vec() };
        let (lines, warm_up, names, areas) = marked(few);
        assert_eq!((lines, warm_up, names), (2, 1, 2));
        let many = Marks { warm_up: 0.0, events: (0..30).map(|_| event(3)).collect() };
        assert_eq!(marked(many), (30, 0, 0, areas - 1));
    }

    #[test]
    fn the_first_colors_differ_for_people_with_colour_blindness() {
        // Without red or green cones (Machado, Oliveira and Fernandes 2009).
        let kinds = [
            [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
            [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        ];
        let seen = |RGBColor(red, green, blue): RGBColor, kind: [[f64; 3]; 3]| {
            let light = [red, green, blue].map(|value| (f64::from(value) / 255.0).powf(2.2));
            kind.map(|row| {
                let sum: f64 = row.iter().zip(light).map(|(part, value)| part * value).sum();
                sum.clamp(0.0, 1.0).powf(1.0 / 2.2)
            })
        };
        for kind in kinds {
            let all: Vec<[f64; 3]> = COLORS[..7].iter().map(|color| seen(*color, kind)).collect();
            for (index, one) in all.iter().enumerate() {
                for (earlier, other) in all[..index].iter().enumerate() {
                    let squares: f64 = one.iter().zip(other).map(|(a, b)| (a - b).powi(2)).sum();
                    assert!(squares.sqrt() > 0.17, "{earlier} and {index}: {}", squares.sqrt());
                }
            }
        }
    }

    #[test]
    fn a_long_line_with_gaps_has_circles_only_at_points_without_neighbours() {
        let value = |x: u32| if [30, 50, 52].contains(&x) { f64::NAN } else { 1.0 };
        let points = (0..60).map(|x| (x.into(), value(x), 0.0)).collect();
        let text = lines(&labels(), &[Curve { points, ..Curve::default() }]).unwrap();
        assert_eq!(text.matches("<circle").count(), 1);
    }

    #[test]
    fn nothing_at_all_can_be_drawn() {
        assert!(lines(&labels(), &[]).is_ok() && bars(&labels(), &[], &[]).is_ok());
        let point = Curve { name: "x".into(), points: vec![(1.0, 0.0, 0.0)], ..Curve::default() };
        assert!(lines(&labels(), &[point]).is_ok());
    }

    #[test]
    fn ranges_leave_room_and_begin_at_zero() {
        assert_eq!(span([1.0, 4.0].into_iter(), false), 1.0..4.0);
        assert_eq!(span([1.0, 4.0].into_iter(), true), 0.0..4.32);
        assert_eq!(span([2.0].into_iter(), false), 1.0..3.0);
        assert_eq!(span([0.0].into_iter(), true), 0.0..0.5);
        assert_eq!(span([0.0].into_iter(), false), 0.0..0.5);
        assert_eq!(span([-1.0, 4.0].into_iter(), false), -1.0..4.0);
        assert_eq!(span([100.0, 100.01].into_iter(), false), 99.49995..100.51005);
        assert_eq!(span(std::iter::empty(), true), 0.0..1.08);
    }
}
