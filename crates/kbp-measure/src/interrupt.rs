// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An interrupt (Ctrl-C, SIGTERM) ends a measurement with its account instead of losing it.
//!
//! Not here: what a measurement does then; it asks [`requested`] between two steps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{Error, Result};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on an interrupt is a request; a second one ends the process as usual.
///
/// # Errors
/// When the kernel refuses the handler.
pub fn catch() -> Result<()> {
    let flag = Arc::clone(FLAG.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|e| Error::sys("handle interrupts", e))?;
    }
    Ok(())
}

/// Whether an interrupt came since [`catch`].
pub fn requested() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}
