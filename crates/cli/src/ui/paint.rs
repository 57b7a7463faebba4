//! Colours, when they are wanted.

use std::io::IsTerminal;

use clap::ValueEnum;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Always, even into a file or a pipe
    Always,
    /// Never
    Never,
}

/// Colours text, or returns it unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// Returns all text unchanged.
    pub const OFF: Self = Self { on: false };
    /// Colours text.
    pub const ON: Self = Self { on: true };

    /// Paint for standard error, following `--color`, `NO_COLOR` (<https://no-color.org>) and `TERM=dumb`.
    pub fn for_stderr(when: When) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let plain = set("NO_COLOR") || super::is_dumb() || !std::io::stderr().is_terminal();
        Self { on: wanted(when, plain) }
    }

    /// True when text is coloured.
    pub fn is_on(self) -> bool {
        self.on
    }

    /// Red and bold: what failed.
    pub fn red_bold(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    /// Red: a path that does not carry data.
    pub fn red(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// Yellow: a warning.
    pub fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Green: done, verified.
    pub fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Bold: headings and important values.
    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// White on black, in any theme: a QR code.
    pub fn white_on_black(self, text: &str) -> String {
        self.wrap("97;40", text)
    }

    /// Dim: secondary information.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Follows the option. With `auto`, uses colours unless the environment asks for `plain` text.
fn wanted(when: When, plain: bool) -> bool {
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto => !plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_wins_over_the_surroundings() {
        assert!(wanted(When::Always, true));
        assert!(!wanted(When::Never, false));
        assert!(wanted(When::Auto, false));
        assert!(!wanted(When::Auto, true));
    }

    #[test]
    fn without_colours_text_is_left_alone() {
        assert_eq!(Paint::OFF.red("x"), "x");
        assert_eq!(Paint::ON.red("x"), "\x1b[31mx\x1b[0m");
    }
}
