//! Collects metrics, and the names of metrics without a value.

use std::collections::{BTreeMap, BTreeSet};

/// Metrics by name.
pub type Metrics = BTreeMap<String, f64>;

/// Collects metrics.
///
/// A metric without a value, such as a mean over nothing, is left out, and its bounds count as violated.
#[derive(Debug, Default)]
pub(super) struct Sheet {
    pub measured: Metrics,
    /// Metrics without a value in this run.
    pub missing: BTreeSet<String>,
}

impl Sheet {
    /// Adds a value under its full name.
    pub(super) fn put(&mut self, name: String, value: impl Into<Option<f64>>) {
        match value.into() {
            Some(value) => _ = self.measured.insert(name, value),
            None => _ = self.missing.insert(name),
        }
    }

    /// A view for metrics that begin with `kind.name.`.
    pub(super) fn of(&mut self, kind: &str, name: &str) -> Prefixed<'_> {
        Prefixed { sheet: self, prefix: format!("{kind}.{name}.") }
    }

    /// Adds the metrics of another sheet, or only their names.
    pub(super) fn take(&mut self, other: Self, with_values: bool) {
        self.missing.extend(other.missing);
        if with_values {
            self.measured.extend(other.measured);
        } else {
            self.missing.extend(other.measured.into_keys());
        }
    }

    pub(super) fn into_names(self) -> BTreeSet<String> {
        self.measured.into_keys().chain(self.missing).collect()
    }
}

/// A sheet, below a prefix.
pub(super) struct Prefixed<'a> {
    sheet: &'a mut Sheet,
    prefix: String,
}

impl Prefixed<'_> {
    pub(super) fn put(&mut self, key: &str, value: impl Into<Option<f64>>) {
        self.sheet.put(format!("{}{key}", self.prefix), value);
    }
}

/// Jain's index of fairness: 1 when all are equal, 1/n when one has everything. `None` if all are zero.
pub(super) fn jain(values: &[f64]) -> Option<f64> {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// `None` for an empty list.
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// `None` if the divisor is zero.
pub(super) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The largest; `None` for an empty list.
pub(super) fn largest(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::max)
}

/// The value below which a share of a sorted list lies (nearest rank); `None` for an empty list.
pub(super) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().saturating_sub(1);
    sorted.get(((last as f64 * share + 0.5) as usize).min(last)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equals_and_one_nth_for_one_alone() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
    }

    #[test]
    fn quantiles_are_values_of_the_list() {
        let list = [1.0, 2.0, 3.0, 4.0, 5.0];
        let found = [0.0, 0.5, 0.9, 1.0].map(|share| quantile(&list, share));
        assert_eq!(found, [1.0, 3.0, 5.0, 5.0].map(Some));
    }

    #[test]
    fn of_nothing_there_is_no_share_no_mean_no_quantile_and_no_fairness() {
        assert_eq!([ratio(0, 0), mean(&[]), quantile(&[], 0.5), jain(&[]), jain(&[0.0, 0.0])], [None; 5]);
        assert_eq!([ratio(0, 7), mean(&[0.0]), largest([])], [Some(0.0), Some(0.0), None]);
    }

    #[test]
    fn what_is_missing_keeps_its_name() {
        let mut sheet = Sheet::default();
        let mut place = sheet.of("flow", "M");
        place.put("lost_share", None);
        place.put("pkt_s", 3.0);
        sheet.put("jain".to_owned(), Some(0.5));
        assert_eq!(sheet.measured.len(), 2);
        let names = ["flow.M.lost_share", "flow.M.pkt_s", "jain"].map(str::to_owned);
        assert_eq!(sheet.into_names(), BTreeSet::from(names));
    }
}
