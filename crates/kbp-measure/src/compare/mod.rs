// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mechanism beside mechanism: which cells are measured in which order, and their measurement.
//!
//! A command becomes a [`plan`], the [`engine`] goes through its cells and keeps their rows, a [`bench`] measures them:
//! on a path ([`place_of`], [`rig`], [`tester_card`]), between two ends ([`server`] or [`service`], [`row`]). [`table`] prints
//! what came out, [`costs`] what it cost. A [`study`] does that in virtual machines.
//!
//! Not here: what serves the packets ([`crate::mechanism`]), what disturbs them ([`crate::load`]), and what may be said
//! of two sets of rows ([`crate::stats`]).

pub mod bench;
pub mod costs;
pub mod cpu_words;
pub mod engine;
pub mod place_of;
pub mod plan;
pub mod preset;
pub mod rates;
pub mod resume;
pub mod rig;
pub mod row;
pub mod server;
pub mod service;
pub mod streams;
pub mod study;
pub mod table;
pub mod tables;
pub mod tester_card;
