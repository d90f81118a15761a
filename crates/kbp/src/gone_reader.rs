// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reader of our output that has gone (`kbp lab list | head -n 1`).
//!
//! What is printed with `println!` panics then. That unwinds, so whatever was set up is put back. There is nobody to tell;
//! the exit code says that not all was done, as that of a program which the signal ended.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

/// 128 and the number of SIGPIPE.
const EXIT_CODE: u8 = 141;
/// How the standard library's message of that begins.
const MESSAGE: &str = "failed printing to stdout: Broken pipe";

fn is_it(payload: &(dyn Any + Send)) -> bool {
    payload
        .downcast_ref::<String>()
        .is_some_and(|message| message.starts_with(MESSAGE))
}

/// Runs the program; all other panics stay what they are.
pub fn tolerated(program: impl FnOnce() -> ExitCode) -> ExitCode {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !is_it(info.payload()) {
            usual(info);
        }
    }));
    match panic::catch_unwind(AssertUnwindSafe(program)) {
        Ok(code) => code,
        Err(payload) if is_it(payload.as_ref()) => ExitCode::from(EXIT_CODE),
        Err(payload) => panic::resume_unwind(payload),
    }
}
