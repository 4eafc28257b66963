//! The numbers of all repetitions.

use crate::tools::{median, quantile};
use std::collections::BTreeMap;

/// By subject, point (`workload/point`) and metric.
#[derive(Default)]
pub(crate) struct Store {
    values: BTreeMap<(String, String, String), Vec<f64>>,
    failures: BTreeMap<(String, String), String>,
}

impl Store {
    pub(crate) fn add(&mut self, subject: &str, point: &str, metric: &str, value: f64) {
        self.values.entry((subject.into(), point.into(), metric.into())).or_default().push(value);
    }
    /// A measurement that gave no number, and why.
    pub(crate) fn fail(&mut self, subject: &str, point: &str, why: String) {
        self.failures.insert((subject.into(), point.into()), why);
    }
    pub(crate) fn failure(&self, subject: &str, point: &str) -> Option<&str> {
        self.failures.get(&(subject.into(), point.into())).map(String::as_str)
    }
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.failures.iter().map(|(k, v)| (k.0.as_str(), k.1.as_str(), v.as_str()))
    }
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str, &str, &[f64])> {
        self.values.iter().map(|(k, v)| (k.0.as_str(), k.1.as_str(), k.2.as_str(), v.as_slice()))
    }

    fn get(&self, subject: &str, point: &str, metric: &str) -> Option<&Vec<f64>> {
        self.values.get(&(subject.into(), point.into(), metric.into()))
    }
    /// The median over the repetitions.
    pub(crate) fn value(&self, subject: &str, point: &str, metric: &str) -> Option<f64> {
        self.get(subject, point, metric).map(|v| median(v))
    }
    /// Half the distance of the quartiles, as a part of the median; `None` of fewer than three repetitions.
    pub(crate) fn spread(&self, subject: &str, point: &str, metric: &str) -> Option<f64> {
        let v = self.get(subject, point, metric).filter(|v| v.len() > 2)?;
        let q = |x| quantile(&mut v.clone(), x);
        let m = median(v);
        (m > 0.0).then(|| (q(0.75) - q(0.25)) / 2.0 / m)
    }
    /// The values of one metric over several points.
    pub(crate) fn over(&self, subject: &str, points: &[String], metric: &str) -> Vec<f64> {
        points.iter().filter_map(|p| self.value(subject, p, metric)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spread() {
        let mut s = Store::default();
        for v in [10.0, 11.0, 9.0, 10.0, 30.0] {
            s.add("a", "p", "ns", v);
        }
        assert_eq!(s.value("a", "p", "ns"), Some(10.0));
        assert_eq!(s.spread("a", "p", "ns"), Some(0.05));
        assert_eq!(s.value("b", "p", "ns"), None);
        s.add("b", "p", "ns", 1.0);
        assert_eq!(s.spread("b", "p", "ns"), None);
    }
}
