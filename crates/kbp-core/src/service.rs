// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How an attached NAPI instance is to be served: a mode, and what that mode may cost.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::attr::{Attr, Attrs, DecodeError};
use crate::error::Error;
use crate::uapi::{attr_napi, Mode, PollClass};

/// The longest wake-up that may be allowed, microseconds.
pub const MAX_WAKE_LATENCY_US: std::ops::RangeInclusive<u32> = 1..=10_000;

/// The class of an instance whose class nobody has named.
pub const CLASS: PollClass = PollClass::Rt;

/// A share of time in steps of a thousandth, above 0 and up to all of it; written as percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    permille: u32,
}

impl Share {
    /// A share in thousandths; `None` outside of 1 to 1000.
    pub fn from_permille(permille: u32) -> Option<Self> {
        (1..=1000).contains(&permille).then_some(Self { permille })
    }
}

impl fmt::Display for Share {
    /// Percent: `25` or `12.5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.permille % 10 {
            0 => write!(f, "{}", self.permille / 10),
            tenth => write!(f, "{}.{tenth}", self.permille / 10),
        }
    }
}

impl FromStr for Share {
    type Err = String;

    /// Percent with at most one decimal.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("'{text}' is not a percentage from 0.1 to 100, in steps of 0.1");
        let (whole, tenth) = text.split_once('.').unwrap_or((text, "0"));
        if tenth.len() != 1 {
            return Err(wrong());
        }
        let number = |digits: &str| {
            digits
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| digits.parse::<u32>().ok())
        };
        let (whole, tenth) = (number(whole).flatten(), number(tenth).flatten());
        let permille = whole
            .zip(tenth)
            .and_then(|(whole, tenth)| whole.checked_mul(10)?.checked_add(tenth));
        permille.and_then(Self::from_permille).ok_or_else(wrong)
    }
}

impl Serialize for Share {
    /// A number, percent.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.permille) / 10.0)
    }
}

/// How a NAPI instance is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Service {
    /// The mode.
    pub mode: Mode,
    /// How urgent it is to its poller.
    pub class: PollClass,
    /// Mode adaptive: CPU time for polls that find nothing, beyond what sleeping would have cost, percent; `None` for
    /// what the module takes.
    #[serde(rename = "cpu_budget_percent", skip_serializing_if = "Option::is_none")]
    pub cpu_budget: Option<Share>,
    /// Mode adaptive: sleep between packets only as long as waking up takes no longer, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wake_latency_us: Option<u32>,
}

impl From<Mode> for Service {
    fn from(mode: Mode) -> Self {
        Self {
            mode,
            class: CLASS,
            cpu_budget: None,
            max_wake_latency_us: None,
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mode)?;
        if self.class != CLASS {
            write!(f, " in class {}", self.class)?;
        }
        if let Some(share) = self.cpu_budget {
            write!(f, " with a CPU budget of {share} %")?;
        }
        if let Some(us) = self.max_wake_latency_us {
            write!(f, " with wake-ups of up to {us} us")?;
        }
        Ok(())
    }
}

impl Service {
    /// The modes that may be asked for.
    pub fn modes() -> Vec<Mode> {
        let all = Mode::ALL.iter().copied();
        all.filter(|mode| *mode != Mode::Softirq).collect()
    }

    /// Why it can't be asked for, if so; what to call the limits is the caller's.
    pub fn refusal(&self, budget: &str, latency: &str) -> Option<String> {
        let limits = (self.cpu_budget, self.max_wake_latency_us);
        match (self.mode, limits) {
            (_, (None, None)) => None,
            (Mode::Adaptive, (Some(_), Some(_))) => Some(format!(
                "{budget} and {latency} are two ways to say one thing; name one"
            )),
            (Mode::Adaptive, _) => None,
            (mode, _) => Some(format!(
                "{budget} and {latency} go with mode adaptive, not with {mode}"
            )),
        }
    }

    /// That what goes through a backlog can be served so; `what` is what is to be attached.
    ///
    /// # Errors
    /// When it can't.
    pub fn check_backlog(&self, what: &str) -> Result<(), Error> {
        match (self.mode, self.class) {
            (Mode::Busy, CLASS) => Ok(()),
            (Mode::Busy, class) => Err(Error::Usage(format!(
                "{what} is served through the backlog of the poller's CPU, which is of class {CLASS} when it is attached: \
                 not of class {class}, which it is while its poller merely owns it"
            ))),
            (mode, _) => Err(Error::Usage(format!(
                "{what} is served through the backlog of the poller's CPU, and a poller that has one attached polls it all \
                 the time: mode busy, not {mode}"
            ))),
        }
    }

    pub(crate) fn to_attrs(self) -> Vec<Attr> {
        let mut attrs = vec![
            Attr::u32(attr_napi::MODE_REQUESTED, self.mode.raw()),
            Attr::u32(attr_napi::CLASS, self.class.raw()),
        ];
        let budget = self
            .cpu_budget
            .map(|share| Attr::u32(attr_napi::CPU_BUDGET, share.permille));
        let latency = self
            .max_wake_latency_us
            .map(|us| Attr::u32(attr_napi::MAX_WAKE_LATENCY_US, us));
        attrs.extend(budget.into_iter().chain(latency));
        attrs
    }

    pub(crate) fn from_attrs(attrs: &Attrs) -> Result<Self, DecodeError> {
        let budget = attrs.optional_u32(attr_napi::CPU_BUDGET)?;
        Ok(Self {
            mode: attrs.value(attr_napi::MODE_REQUESTED, Mode::from_raw)?,
            class: attrs.value(attr_napi::CLASS, PollClass::from_raw)?,
            cpu_budget: budget.and_then(Share::from_permille),
            max_wake_latency_us: attrs.optional_u32(attr_napi::MAX_WAKE_LATENCY_US)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_as_it_is_written() {
        for permille in 1..=1000 {
            let share = Share::from_permille(permille).unwrap();
            assert_eq!(share.to_string().parse(), Ok(share));
        }
        for wrong in [
            "",
            "0",
            "0.0",
            "100.1",
            "101",
            "-1",
            "1.",
            ".5",
            "1.25",
            "1e1",
            "+1",
            "4294967296",
            "5 %",
        ] {
            wrong.parse::<Share>().unwrap_err();
        }
    }

    #[test]
    fn limits_go_with_mode_adaptive_and_one_at_a_time() {
        let with = |mode, budget, latency| Service {
            cpu_budget: Share::from_permille(budget),
            max_wake_latency_us: latency,
            ..Service::from(mode)
        };
        let refused = |service: Service| service.refusal("budget", "latency");
        for mode in Service::modes() {
            assert_eq!(refused(mode.into()), None);
            assert_eq!(
                refused(with(mode, 100, None)).is_none(),
                mode == Mode::Adaptive
            );
            assert_eq!(
                refused(with(mode, 0, Some(50))).is_none(),
                mode == Mode::Adaptive
            );
            assert!(refused(with(mode, 100, Some(50))).is_some());
        }
    }
}
