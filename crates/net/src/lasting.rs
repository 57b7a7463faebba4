//! Problems that last: each is logged once, and so is its end, as a warning too: whoever saw the one has to see the other.

/// The current problem of one activity that is tried again and again.
#[derive(Clone, Debug, Default)]
pub struct Lasting(Option<String>);

impl Lasting {
    /// Notes the outcome of an attempt: its problem, or `None` after a success. True if that is worth a line in the log:
    /// the problem is a new one, or it is over.
    pub fn is_news(&mut self, problem: Option<&str>) -> bool {
        let is_news = self.0.as_deref() != problem;
        if is_news {
            self.0 = problem.map(str::to_owned);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_news_when_it_begins_changes_or_ends() {
        let mut lasting = Lasting::default();
        let outcomes =
            [None, Some("no route"), Some("no route"), Some("no room"), None, None, Some("no room")];
        let news = outcomes.map(|problem| lasting.is_news(problem));
        assert_eq!(news, [false, true, false, true, true, false, true]);
    }
}
