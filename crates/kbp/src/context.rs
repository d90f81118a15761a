// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every subcommand gets: the host, and how output is to look.

use kbp_core::{Client, Error, Host};

/// The host, and the options that every subcommand has.
pub struct Context {
    /// The running machine.
    pub host: Host,
    /// A network namespace was named, and entered.
    pub is_in_netns: bool,
    /// Print JSON.
    pub json: bool,
    /// Indent it.
    pub pretty: bool,
}

impl Context {
    /// A connection to the module.
    pub fn client(&self) -> Result<Client, Error> {
        Ok(Client::connect()?)
    }
}
