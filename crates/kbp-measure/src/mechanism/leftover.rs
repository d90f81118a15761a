// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose turn it is, and what a process that died in its turn has left: that is undone by the next one.
//!
//! At most one mechanism is set up on a machine. Who does is written to kbp-core's memory before anything is
//! changed. Not here: how each kind of change is put back; that is kbp-core.

use std::collections::BTreeSet;
use std::time::Duration;

use kbp_core::netns::NetnsError;
use kbp_core::process::Process;
use kbp_core::state::{MechanismRecord, State};
use kbp_core::{busy_poll, module, placed, plan, setting, threaded, Host};

use crate::error::{Error, Result};
use crate::mechanism::family::memory;
use crate::place::{run_at, Place};

/// How long a live-patch transition may take, either way.
pub(crate) const TRANSITION_LIMIT: Duration = Duration::from_secs(60);

/// Runs `work` on a thread that is in this network namespace; `None` stays in the caller's.
pub(crate) fn in_namespace<T: Send>(
    netns: Option<&str>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let place = Place {
        netns: netns.map(Into::into),
        ..Place::default()
    };
    run_at(&place, work)
}

/// Takes the turn for a mechanism; what a process that died has left is undone first.
///
/// # Errors
/// When another one has the turn, or its leftovers can't be undone.
pub(crate) fn begin(name: &str) -> Result<()> {
    recover()?;
    let mut state = memory()?;
    refuse_other(&state.state)?;
    state.state.mechanism = Some(MechanismRecord {
        name: name.into(),
        process: Process::own(&Host::system()).map_err(kbp_core::Error::from)?,
    });
    Ok(state.save().map_err(kbp_core::Error::from)?)
}

/// Ends the turn.
pub(crate) fn end() -> Result<()> {
    let mut state = memory()?;
    state.state.mechanism = None;
    Ok(state.save().map_err(kbp_core::Error::from)?)
}

fn refuse_other(state: &State) -> Result<()> {
    let Some(record) = &state.mechanism else {
        return Ok(());
    };
    let host = Host::system();
    if !record
        .process
        .is_alive(&host)
        .map_err(kbp_core::Error::from)?
    {
        return Ok(());
    }
    Err(Error::Core(kbp_core::Error::Conflict(format!(
        "the mechanism {} is set up by process {}; wait for its end, or stop it",
        record.name, record.process.pid
    ))))
}

/// Undoes what a process that died has left of a mechanism. Returns what was undone, in words; `None` when there
/// was nothing.
///
/// # Errors
/// When another process has a mechanism set up at the moment, or something can't be undone; it stays remembered.
pub fn recover() -> Result<Option<String>> {
    let state = memory()?.state.clone();
    refuse_other(&state)?;
    let module_left = match state.module {
        Some(process) => !process
            .is_alive(&Host::system())
            .map_err(kbp_core::Error::from)?,
        None => false,
    };
    let Some(record) = &state.mechanism else {
        if module_left {
            release_module()?;
            return Ok(Some(
                "the kbp module, left loaded by a process that died".into(),
            ));
        }
        return Ok(None);
    };
    if module_left {
        plan::undo_everything(&Host::system())?;
        release_module()?;
    }
    placed::restore(&Host::system(), &mut memory()?)?;
    for netns in namespaces(&state) {
        restore_namespace(netns.as_deref())?;
    }
    end()?;
    Ok(Some(format!(
        "the mechanism {}, left by process {} that died",
        record.name, record.process.pid
    )))
}

fn namespaces(state: &State) -> BTreeSet<Option<String>> {
    let settings = state.settings.iter().map(|record| record.netns.clone());
    let threaded = state.threaded.values().map(|record| record.netns.clone());
    let napis = state.napis.values().map(|record| record.netns.clone());
    settings.chain(threaded).chain(napis).collect()
}

/// Puts back what was changed in a network namespace that has not been put back; nothing is no error.
pub(crate) fn restore_namespace(netns: Option<&str>) -> Result<()> {
    let restored = in_namespace(netns, || {
        let (host, mut state) = (Host::system(), memory()?);
        setting::restore(&host, &mut state, netns)?;
        threaded::restore(&host, &mut state, netns)?;
        Ok(busy_poll::restore(&host, &mut state, netns)?)
    });
    match restored {
        Err(Error::Core(kbp_core::Error::Netns(NetnsError::Unknown { .. }))) => forget(netns),
        other => other,
    }
}

/// A namespace that is gone took its interfaces with it.
fn forget(netns: Option<&str>) -> Result<()> {
    let mut file = memory()?;
    let state = &mut file.state;
    state
        .settings
        .retain(|record| record.netns.as_deref() != netns);
    state
        .threaded
        .retain(|_, record| record.netns.as_deref() != netns);
    state
        .napis
        .retain(|_, record| record.netns.as_deref() != netns);
    Ok(file.save().map_err(kbp_core::Error::from)?)
}

/// Remembers that this process loads the kernel module and is to unload it.
pub(crate) fn own_module() -> Result<()> {
    let mut state = memory()?;
    let own = Process::own(&Host::system()).map_err(kbp_core::Error::from)?;
    state.state.module = Some(own);
    Ok(state.save().map_err(kbp_core::Error::from)?)
}

/// Whether the kernel module was loaded for a mechanism, and not by somebody else.
pub(crate) fn module_is_ours() -> Result<bool> {
    Ok(memory()?.state.module.is_some())
}

/// Unloads the kernel module if it was loaded for a mechanism; to be called at the end of a run that kept it
/// ([`crate::mechanism::KeepModule`]). Nothing to do is no error.
///
/// # Errors
/// When it can't be unloaded; then it stays remembered.
pub fn release_module() -> Result<()> {
    if !module_is_ours()? {
        return Ok(());
    }
    let host = Host::system();
    if module::status(&host).map_err(kbp_core::Error::from)?.loaded {
        module::unload(&host, TRANSITION_LIMIT, &mut |_| {}).map_err(kbp_core::Error::from)?;
    }
    let mut state = memory()?;
    state.state.module = None;
    Ok(state.save().map_err(kbp_core::Error::from)?)
}
