// SPDX-License-Identifier: Apache-2.0 OR MIT
//! UDP ping-pong: a client that sends numbered datagrams at seeded times and measures
//! their round trips, and the echo server at the other end.
//!
//! Both use plain blocking `send` and `recv`, the path of an unmodified application.
//! Not here: where the threads run ([`crate::place`]) and under which mechanism and
//! load ([`crate::compare`]).

mod client;
mod ledger;
mod packet;
mod server;
mod stats;

pub use client::{run_client, ClientConfig, ClientReport, Stop};
pub use packet::{Ping, HEADER_LEN, PAYLOAD_LEN_MAX};
pub use server::{EchoReport, EchoServer};
pub use stats::{Counts, RoundTrips};
