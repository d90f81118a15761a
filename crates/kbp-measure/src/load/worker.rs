// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads of a load: placed, ready when they are said to be, and ended together.
//!
//! Not here: what they do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::place::Place;

/// Asks a thread to end.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether the thread shall end.
    pub(super) fn requested(&self) -> bool {
        // Nothing but the flag itself is passed, so no order is needed.
        self.0.load(Ordering::Relaxed)
    }

    fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads of a load. Dropping them ends them; [`Workers::end`] also tells what went wrong.
#[derive(Debug, Default)]
pub(super) struct Workers {
    stop: Stop,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Workers {
    /// Starts a thread at `place` that sets itself up and then works until it is asked to end. Returns when it is set up.
    ///
    /// # Errors
    /// When the thread can't be made or placed, and those of `set_up`; the threads before go on.
    pub(super) fn spawn<T>(
        &mut self,
        name: &str,
        place: Place,
        set_up: impl FnOnce() -> Result<T> + Send + 'static,
        work: impl FnOnce(T, &Stop) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let (ready_tx, ready_rx) = std::sync::mpsc::channel();
        let stop = self.stop.clone();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                // The starter only goes away after it has heard from this thread.
                match place.apply().and_then(|()| set_up()) {
                    Ok(ready) => {
                        let _ = ready_tx.send(Ok(()));
                        work(ready, &stop)
                    }
                    Err(error) => {
                        let _ = ready_tx.send(Err(error));
                        Ok(())
                    }
                }
            })
            .map_err(|e| Error::sys(format!("start the thread {name}"), e))?;
        self.threads.push(thread);
        ready_rx.recv().map_err(|_| Error::Panicked("load"))?
    }

    /// Ends all threads and waits for them.
    ///
    /// # Errors
    /// The first failure of a thread.
    pub(super) fn end(&mut self) -> Result<()> {
        self.stop.request();
        let mut first = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or(Err(Error::Panicked("load")));
            first = first.and(ended);
        }
        first
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // On this path another error is on its way already, and that one is reported.
        let _ = self.end();
    }
}
