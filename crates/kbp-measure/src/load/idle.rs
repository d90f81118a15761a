// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No load: what a path does when nobody competes with it.

use super::{Count, Entry, Load, Work};
use crate::error::Result;

pub(super) const ENTRY: Entry = Entry {
    load: Load::Idle,
    name: "idle",
    about: "nothing else runs",
    check: |_| Ok(()),
    words: |_| "Nothing else runs.".into(),
    start: |_| Ok(Box::new(Nothing)),
};

#[derive(Debug)]
struct Nothing;

impl Work for Nothing {
    fn counts(&self) -> Result<Vec<Count>> {
        Ok(Vec::new())
    }

    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
