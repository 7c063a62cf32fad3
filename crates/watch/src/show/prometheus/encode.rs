// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gauges, counters and histograms of many series, written by `prometheus-client`.

use crate::model::Histogram;
use crate::show::histogram::{bound, count};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::borrow::Borrow;
use std::fmt::Error;

pub type Labels = Vec<(&'static str, String)>;

/// Series of one metric.
pub struct Series<T>(pub Vec<(Labels, T)>);

pub fn gauge(
    out: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    all: Series<f64>,
) -> Result<(), Error> {
    numbers(out, name, help, all, MetricType::Gauge)
}

/// `name` without `_total`.
pub fn counter(
    out: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    all: Series<f64>,
) -> Result<(), Error> {
    numbers(out, name, help, all, MetricType::Counter)
}

fn numbers(
    out: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    all: Series<f64>,
    kind: MetricType,
) -> Result<(), Error> {
    let mut metric = out.encode_descriptor(name, help, None, kind)?;
    let put = |metric: &mut MetricEncoder, value: &f64| match kind {
        MetricType::Counter => metric.encode_counter::<NoLabelSet, _, f64>(value, None),
        _ => metric.encode_gauge(value),
    };
    for (labels, value) in &all.0 {
        match labels.is_empty() {
            true => put(&mut metric, value)?,
            false => put(&mut metric.encode_family(labels)?, value)?,
        }
    }
    Ok(())
}

pub fn histogram<H: Borrow<Histogram>>(
    out: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    all: Series<H>,
) -> Result<(), Error> {
    let mut metric = out.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, value) in &all.0 {
        let value = value.borrow();
        let buckets: Vec<(f64, u64)> = (0..Histogram::BUCKETS)
            .map(|n| {
                let bound = bound(n).map_or(f64::INFINITY, |ns| ns as f64 / 1e9);
                (bound, value.counts.get(n).copied().unwrap_or(0))
            })
            .collect();
        let sum = seconds(value.total_ns);
        metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(
            sum,
            count(value),
            &buckets,
            None,
        )?;
    }
    Ok(())
}

pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
