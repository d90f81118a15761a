// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The logarithmic axis of the percentile bars: its ends and its ticks.
//!
//! Not here: the axes of the charts, which the browser draws (`page.js`).

use super::text::time;

/// A logarithmic axis of times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    low_ns: f64,
    high_ns: f64,
}

impl Scale {
    /// The axis that holds every one of these times, nanoseconds, with ends of one digit.
    pub fn of(times_ns: impl Iterator<Item = u64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 1.0);
        for ns in times_ns {
            low = f64::min(low, ns.max(1) as f64);
            high = f64::max(high, ns as f64);
        }
        let low_ns = one_digit(low.min(high), f64::floor);
        let high_ns = one_digit(high, f64::ceil);
        // One value only still needs an axis with two ends.
        let high_ns = if high_ns > low_ns {
            high_ns
        } else {
            low_ns * 2.0
        };
        Self { low_ns, high_ns }
    }

    /// The place of a time on the axis, 0 to 1.
    pub fn place(&self, ns: f64) -> f64 {
        let place = (ns.max(1.0) / self.low_ns).log10() / self.span();
        place.clamp(0.0, 1.0)
    }

    fn span(&self) -> f64 {
        (self.high_ns / self.low_ns).log10()
    }

    /// Places and names: all of one digit on a short axis, 1, 2 and 5 on a longer one, powers of
    /// ten beyond that. At most seven, so that they have room on a phone.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let digits: &[u32] = match self.span() {
            span if span < 0.6 => &[1, 2, 3, 4, 5, 6, 7, 8, 9],
            span if span < 1.7 => &[1, 2, 5],
            _ => &[1],
        };
        let decades = self.low_ns.log10().floor() as i32..=self.high_ns.log10().ceil() as i32;
        let all = decades.flat_map(|decade| {
            digits
                .iter()
                .map(move |digit| f64::from(*digit) * 10f64.powi(decade))
        });
        let inside = all.filter(|ns| *ns > self.low_ns * 0.999 && *ns < self.high_ns * 1.001);
        inside.map(|ns| (self.place(ns), tick_name(ns))).collect()
    }
}

/// A tick has one digit that counts: "10 µs", not "10.0 µs".
fn tick_name(ns: f64) -> String {
    time(ns).replace(".00", "").replace(".0", "")
}

/// Rounds to one digit: 42 µs to 40 or 50.
fn one_digit(ns: f64, round: fn(f64) -> f64) -> f64 {
    let unit = 10f64.powf(ns.log10().floor());
    round(ns / unit) * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_holds_every_time() {
        let scale = Scale::of([42_000, 1_200_000, 24_000_000].into_iter());
        assert_eq!((scale.low_ns, scale.high_ns), (4e4, 3e7));
        assert_eq!((scale.place(4e4), scale.place(3e7)), (0.0, 1.0));
        assert!(scale.place(1e6) > 0.4 && scale.place(1e6) < 0.6);
        let empty = Scale::of(std::iter::empty());
        assert!(empty.place(5.0).is_finite(), "{empty:?}");
    }

    #[test]
    fn labels_are_neither_missing_nor_crowded() {
        let labels = |low, high| {
            let ticks = Scale::of([low, high].into_iter()).ticks();
            ticks
                .into_iter()
                .map(|tick| tick.1)
                .collect::<Vec<_>>()
                .join(", ")
        };
        assert_eq!(labels(41_300, 64_000), "40 µs, 50 µs, 60 µs, 70 µs");
        assert_eq!(labels(43_000, 219_000), "50 µs, 100 µs, 200 µs");
        assert_eq!(labels(43_000, 24_000_000), "100 µs, 1 ms, 10 ms");
        assert_eq!(labels(1, 1), "1 ns, 2 ns");
    }
}
