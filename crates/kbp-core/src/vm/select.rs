// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which machine a person means by a name or a number.
//!
//! Not here: what is done to it.

use std::convert::Infallible;
use std::str::FromStr;

use crate::error::Error;
use crate::host::Host;
use crate::vm::model::Vm;
use crate::vm::record::VmRecord;

/// A machine by its name or by the number of its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmName(String);

impl FromStr for VmName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Display for VmName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What has a name and a number.
trait Named {
    fn name(&self) -> Option<&str>;
    fn pid(&self) -> u32;
    fn label(&self) -> String;
}

impl Named for Vm {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn pid(&self) -> u32 {
        self.process.pid
    }

    fn label(&self) -> String {
        self.label()
    }
}

impl Named for VmRecord {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn pid(&self) -> u32 {
        self.process.pid
    }

    fn label(&self) -> String {
        self.label()
    }
}

fn list<T: Named>(all: &[T]) -> String {
    let labels: Vec<String> = all.iter().map(T::label).collect();
    labels.join(", ")
}

/// The one that is meant. A name goes before a number: a machine may be called `1`.
fn one<'a, T: Named>(all: &'a [T], wanted: &VmName) -> Result<Option<&'a T>, Error> {
    let named: Vec<&T> = all
        .iter()
        .filter(|one| one.name() == Some(wanted.0.as_str()))
        .collect();
    match named.as_slice() {
        [] => Ok(all.iter().find(|one| wanted.0.parse() == Ok(one.pid()))),
        [only] => Ok(Some(only)),
        several => {
            let labels: Vec<String> = several.iter().map(|one| one.label()).collect();
            Err(Error::Usage(format!(
                "'{wanted}' is the name of {} virtual machines; name one by its process: {}",
                several.len(),
                labels.join(", ")
            )))
        }
    }
}

impl VmName {
    /// The running machine that is meant.
    ///
    /// # Errors
    /// When there is none, or more than one of that name.
    pub fn running<'v>(&self, host: &Host, vms: &'v [Vm]) -> Result<&'v Vm, Error> {
        if let Some(vm) = one(vms, self)? {
            return Ok(vm);
        }
        let there = match vms.is_empty() {
            true => "no virtual machine of QEMU runs here".to_owned(),
            false => format!("there are: {}", list(vms)),
        };
        let is_process = self
            .0
            .parse()
            .is_ok_and(|pid: u32| host.exists(&format!("proc/{pid}")));
        Err(Error::NotFound(match is_process {
            true => format!("process {self} is no virtual machine of QEMU; {there}"),
            false => format!("no virtual machine has the name or the process '{self}'; {there}"),
        }))
    }

    /// The machine that is meant among those that were tuned, whether it still runs or not.
    ///
    /// # Errors
    /// When there is none, or more than one of that name.
    pub fn tuned<'r>(&self, records: &'r [VmRecord]) -> Result<&'r VmRecord, Error> {
        if let Some(record) = one(records, self)? {
            return Ok(record);
        }
        Err(Error::NotFound(match records.is_empty() {
            true => format!("'{self}' is not tuned, nor is any other virtual machine"),
            false => format!("'{self}' is not tuned; these are: {}", list(records)),
        }))
    }
}
