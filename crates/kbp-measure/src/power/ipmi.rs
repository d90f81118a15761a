// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Power of the whole machine as its management controller says it, through `ipmitool dcmi power reading`.
//!
//! A reading is coarse: watts without decimals, of a sensor that may be a second late.
//! Not here: energy; it is power times time, and whoever has the readings has the times.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kbp_core::Host;

/// How long `ipmitool` may take; one that takes longer disturbs more than it tells.
const LIMIT: Duration = Duration::from_secs(2);
const DEVICES: [&str; 3] = ["dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"];

/// A first reading, watts; or why there is none, as the end of a sentence.
pub(crate) fn find(host: &Host) -> Result<f64, String> {
    if !DEVICES.iter().any(|device| host.exists(device)) {
        return Err(
            "there is no /dev/ipmi0: no management controller, or its driver ipmi_devintf is not loaded".into(),
        );
    }
    if !host.is_system() {
        return Err("only the controller of the running machine answers".into());
    }
    watts().ok_or_else(|| {
        "`ipmitool dcmi power reading` is not installed, takes longer than 2 s, or names no power".into()
    })
}

/// The power that the management controller measured last; `None` without an answer in time.
pub(crate) fn watts() -> Option<f64> {
    let mut child = Command::new("ipmitool")
        .args(["dcmi", "power", "reading"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // An interrupt of the terminal ends the measurement, and not the reading.
        .process_group(0)
        .spawn()
        .ok()?;
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if begin.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
    let output = child.wait_with_output().ok()?;
    parse_watts(&String::from_utf8_lossy(&output.stdout))
}

/// The first line of `ipmitool dcmi power reading` that has a present power: "Instantaneous power reading: 212 Watts".
fn parse_watts(text: &str) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| line.trim().starts_with("Instantaneous power reading"))?;
    let watts: f64 = line
        .split(':')
        .nth(1)?
        .split_whitespace()
        .next()?
        .parse()
        .ok()?;
    // Controllers without a sensor say 0.
    (watts > 0.0).then_some(watts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_present_power_is_read() {
        let reading = "\n    Instantaneous power reading:                   212 Watts\n    Minimum during sampling period: 4 Watts\n";
        assert_eq!(parse_watts(reading), Some(212.0));
        assert_eq!(parse_watts("Instantaneous power reading: 0 Watts"), None);
        assert_eq!(parse_watts("DCMI request failed"), None);
        let why = find(&Host::at("/nonexistent")).unwrap_err();
        assert!(why.contains("/dev/ipmi0"), "{why}");
    }
}
