//! `--qr`: draws a ticket as a QR code below its text.
//!
//! The drawing goes to standard error, so standard output still holds the ticket alone.

use std::io::IsTerminal as _;

use clap::Args;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use zeroize::Zeroizing;

use crate::context::{Context, OUTPUT};
use crate::errors::Failure;
use crate::ui::out;
use crate::ui::paint::Paint;
use crate::ui::width::{Size, width};

/// The option.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct QrOption {
    /// Also draw the ticket as a QR code, for a camera
    #[arg(long, help_heading = OUTPUT)]
    pub qr: bool,
}

impl QrOption {
    /// Refuses `--qr` where it cannot be drawn.
    pub fn check(self, json: bool, no_ticket: bool) -> Result<(), Failure> {
        if self.qr && json {
            return Err(Failure::usage("`--qr` draws for people, and `--json` prints events for programs")
                .hint("leave one of them out; the events hold the ticket's text, which a program can draw"));
        }
        if self.qr && no_ticket {
            return Err(Failure::usage("`--qr` draws a ticket, but `--no-ticket` leaves it out")
                .hint("leave one of them out"));
        }
        Ok(())
    }

    /// Draws `ticket` on standard error if the user wants that.
    pub fn show(self, ticket: &str, context: &Context) {
        if self.qr {
            let size = std::io::stderr().is_terminal().then(Size::of_stderr);
            out::error(&drawn(ticket, size, context.paint));
        }
    }
}

/// The code for a terminal of this size (`None`: no terminal, so no limit), or why it does not fit.
fn drawn(ticket: &str, size: Option<Size>, paint: Paint) -> Zeroizing<String> {
    // Capital letters take 5.5 bits each, others 8. Tickets are read in either.
    let capitals = Zeroizing::new(ticket.to_ascii_uppercase());
    let warning = |text: String| Zeroizing::new(format!("\n{} {text}\n", paint.yellow("warning:")));
    let Ok(code) = QrCode::with_error_correction_level(capitals.as_bytes(), EcLevel::L) else {
        return warning("this ticket is too long for a QR code".into());
    };
    // Light modules are drawn and dark ones left blank: most terminals are dark.
    let mut code = code.render::<Dense1x2>();
    let code = Zeroizing::new(code.dark_color(Dense1x2::Light).light_color(Dense1x2::Dark).build());
    let (columns, rows) = (code.lines().next().map_or(0, width), code.lines().count());
    let advice = "enlarge it or choose a smaller font";
    if let Some(size) = size.filter(|size| size.columns < columns) {
        return warning(format!(
            "the QR code needs {columns} columns, and this terminal has {}; {advice}",
            size.columns
        ));
    }
    let mut text = Zeroizing::new(String::with_capacity(code.len() * 2));
    text.push('\n');
    for line in code.lines() {
        text.push_str(&paint.white_on_black(line));
        text.push('\n');
    }
    if let Some(size) = size.filter(|size| size.rows <= rows) {
        text.push_str(&warning(format!(
            "the QR code has {rows} lines, and this terminal {}; {advice}",
            size.rows
        )));
    }
    text
}

#[cfg(test)]
mod tests {
    use qrcode::Color;

    use super::*;

    const TICKET: &str = "anabranch1qqqsyqcyq5rqwzqfpg9scrgwpugpzysnzs23v9ccrydpk8qarc0jq";

    /// The modules of a drawing, without the four light ones around it: true for dark.
    fn modules(drawing: &str) -> Vec<bool> {
        let lines: Vec<Vec<char>> = drawing.trim().lines().map(|line| line.chars().collect()).collect();
        let side = lines[0].len();
        let is_light = |row: usize, column: usize| match lines[row / 2][column] {
            '█' => true,
            '▀' => row.is_multiple_of(2),
            '▄' => !row.is_multiple_of(2),
            blank => {
                assert_eq!(blank, ' ');
                false
            }
        };
        for edge in 0..4 {
            assert!((0..side).all(|at| is_light(edge, at) && is_light(at, edge)), "no margin");
        }
        let inner = 4..side - 4;
        inner
            .clone()
            .flat_map(|row| inner.clone().map(move |column| (row, column)))
            .map(|(row, column)| !is_light(row, column))
            .collect()
    }

    #[test]
    fn a_drawing_shows_the_ticket_in_capitals_with_a_margin() {
        let drawing = drawn(TICKET, Some(Size { columns: 80, rows: 60 }), Paint::OFF);
        let code = QrCode::with_error_correction_level(TICKET.to_uppercase(), EcLevel::L).unwrap();
        let expected: Vec<bool> = code.to_colors().into_iter().map(|color| color == Color::Dark).collect();
        assert_eq!(modules(&drawing), expected);
        let coloured = drawn(TICKET, None, Paint::ON);
        assert_eq!(
            coloured.trim().lines().map(width).collect::<Vec<_>>(),
            [drawing.trim().lines().next().map_or(0, width)].repeat(drawing.trim().lines().count())
        );
    }

    #[test]
    fn a_ticket_of_500_characters_fits_80_columns() {
        let drawing = drawn(&"a1".repeat(250), Some(Size { columns: 80, rows: 60 }), Paint::OFF);
        assert!(drawing.contains('█') && drawing.lines().all(|line| width(line) <= 80), "{}", *drawing);
    }

    #[test]
    fn a_terminal_that_is_too_small_gets_a_warning() {
        let narrow = drawn(TICKET, Some(Size { columns: 30, rows: 60 }), Paint::OFF);
        assert!(
            narrow.starts_with("\nwarning: the QR code needs 37 columns, and this terminal has 30; "),
            "{}",
            *narrow
        );
        assert!(!narrow.contains('█'));
        let low = drawn(TICKET, Some(Size { columns: 37, rows: 19 }), Paint::OFF);
        assert!(
            low.contains('█') && low.contains("the QR code has 19 lines, and this terminal 19"),
            "{}",
            *low
        );
        assert!(drawn(&"a".repeat(9_000), None, Paint::OFF).contains("too long"));
    }

    #[test]
    fn a_code_is_for_people_and_for_tickets() {
        let wanted = QrOption { qr: true };
        assert!(
            wanted.check(true, false).unwrap_err().message.contains("`--json` prints events for programs")
        );
        assert!(wanted.check(false, true).unwrap_err().message.contains("`--no-ticket` leaves it out"));
        assert!(wanted.check(false, false).is_ok() && QrOption::default().check(true, true).is_ok());
    }

    #[test]
    fn a_ticket_in_capitals_is_the_same_ticket() {
        let ticket = anabranch_net::Ticket {
            node: anabranch_net::NodeKey::from_random([2; 32]).public(),
            addresses: vec!["[2001:db8::9]:4433".parse().unwrap()],
            relays: Vec::new(),
            share: anabranch_net::ShareId(3),
            secret: anabranch_net::TicketSecret::from_random([1; 16]),
            expires: None,
        };
        let text = ticket.to_text().to_ascii_uppercase();
        assert_eq!(*text.parse::<anabranch_net::Ticket>().unwrap().to_text(), *ticket.to_text());
    }
}
