// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names on the command line into entries of the tables of loads and mechanisms.
//!
//! Not here: the tables ([`crate::load`], [`crate::mechanism`]).

use crate::error::{Error, Result};
use crate::load::{Load, LOADS};
use crate::mechanism::{find, Mechanism, MECHANISMS};

/// The names of all loads.
pub fn loads() -> Vec<&'static str> {
    LOADS.iter().map(|load| load.name).collect()
}

/// The names of all mechanisms; the stock path is the first.
pub fn mechanisms() -> Vec<&'static str> {
    MECHANISMS.iter().map(|mechanism| mechanism.name).collect()
}

/// A load by its name.
///
/// # Errors
/// A sentence with the names that there are.
pub fn load(name: &str) -> Result<Load> {
    Load::from_name(name).ok_or_else(|| {
        let all = loads().join(", ");
        Error::Invalid(format!("there is no load '{name}'; there are: {all}"))
    })
}

/// A mechanism by its name.
///
/// # Errors
/// A sentence with the names that there are.
pub fn mechanism(name: &str) -> Result<&'static Mechanism> {
    find(name)
}
