// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host made of plain files, and a family that keeps its attachments in memory.
#![allow(dead_code, reason = "every test file uses a part of this")]

pub mod restoring;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use kbp_core::attr::Attrs;
use kbp_core::client::{ClientError, Control};
use kbp_core::host::HostError;
use kbp_core::model::{Napi, NapiRef, Poller, PollerSpec, Schedule, Stats};
use kbp_core::netlink::Refusal;
use kbp_core::netns::NetnsError;
use kbp_core::plan::AttachRequest;
use kbp_core::service::{Service, CLASS};
use kbp_core::uapi::{Backlog, Freq, Mode, Owns, State, NAPI_COUNTERS, POLLER_COUNTERS};
use kbp_core::waits::Waits;
use kbp_core::Host;
use tempfile::TempDir;

/// The wish of most tests: an interface, busy, by the pollers of these CPUs, with all that goes with it.
pub fn request(target: &str, cpus: &[u32]) -> AttachRequest {
    AttachRequest {
        target: target.parse().unwrap(),
        queues: Vec::new(),
        cpus: cpus.to_vec(),
        service: Mode::Busy.into(),
        move_irq: true,
        set_xps: true,
    }
}

/// Cookie of the network namespace that the tests are in.
pub const COOKIE: u64 = 1;

/// /proc/interrupts of a Debian 6.1 guest with an e1000e in MSI-X mode.
pub const E1000E: &str = "\
           CPU0       CPU1       CPU2       CPU3
  1:          0          0          0          9   IO-APIC   1-edge      i8042
 24:          0          0          0          0   PCI-MSI 65536-edge      PCIe PME
 25:       1204          0          0          0   PCI-MSI 49152-edge      eth0-rx-0
 26:        733          0          0          0   PCI-MSI 49153-edge      eth0-tx-0
 27:          3          0          0          0   PCI-MSI 49154-edge      eth0
LOC:       5544       5120       4980       4899   Local timer interrupts
";

/// A directory that looks like the root of a machine with four CPUs and an e1000e as eth0.
pub struct Machine {
    directory: TempDir,
    /// The host whose root it is.
    pub host: Host,
}

impl Machine {
    pub fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let host = Host::at(directory.path());
        let machine = Self { directory, host };
        machine.write("proc/sys/kernel/osrelease", "6.1.0-55-amd64\n");
        machine.write("proc/sys/kernel/random/boot_id", "boot-one\n");
        machine.write("sys/devices/system/cpu/online", "0-3\n");
        machine.write("proc/interrupts", E1000E);
        machine.add_nic("eth0", "0000:00:03.0", 2, 1, &[25, 26, 27]);
        machine
    }

    pub fn write(&self, file: &str, text: &str) {
        let path = self.directory.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.directory.path().join(file))
            .unwrap()
            .trim()
            .to_owned()
    }

    pub fn remove(&self, file: &str) {
        fs::remove_file(self.directory.path().join(file)).unwrap();
    }

    pub fn add_nic(&self, name: &str, device: &str, ifindex: u32, queues: u32, irqs: &[u32]) {
        self.write(
            &format!("sys/class/net/{name}/ifindex"),
            &format!("{ifindex}\n"),
        );
        self.write(&format!("sys/class/net/{name}/threaded"), "0\n");
        for queue in 0..queues {
            self.write(
                &format!("sys/class/net/{name}/queues/rx-{queue}/rps_cpus"),
                "0\n",
            );
        }
        for irq in irqs {
            self.write(
                &format!("sys/devices/pci/{device}/msi_irqs/{irq}"),
                "msix\n",
            );
            self.write(&format!("proc/irq/{irq}/smp_affinity_list"), "0-3\n");
            self.write(&format!("proc/irq/{irq}/effective_affinity_list"), "0\n");
        }
        self.write(&format!("sys/devices/pci/{device}/irq"), "11\n");
        let target = self
            .directory
            .path()
            .join(format!("sys/devices/pci/{device}"));
        symlink(
            target,
            self.directory
                .path()
                .join(format!("sys/class/net/{name}/device")),
        )
        .unwrap();
    }

    /// Has the device of an interface be on a bus.
    pub fn set_bus(&self, name: &str, bus: &str) {
        let root = self.directory.path();
        let target = root.join(format!("sys/bus/{bus}"));
        fs::create_dir_all(&target).unwrap();
        symlink(
            target,
            root.join(format!("sys/class/net/{name}/device/subsystem")),
        )
        .unwrap();
    }

    /// Every file but those that kbp remembers things in, without the white space around what it holds.
    pub fn files(&self) -> BTreeMap<PathBuf, String> {
        let mut files = BTreeMap::new();
        let mut directories = vec![
            self.directory.path().join("proc"),
            self.directory.path().join("sys"),
        ];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                match entry.file_type().unwrap() {
                    kind if kind.is_dir() => directories.push(entry.path()),
                    kind if kind.is_file() => {
                        let text = fs::read_to_string(entry.path()).unwrap();
                        files.insert(entry.path(), text.trim().to_owned());
                    }
                    _ => {}
                }
            }
        }
        files
    }

    /// A virtual interface: no device behind it.
    pub fn add_virtual(&self, name: &str, ifindex: u32, queues: u32) {
        self.write(
            &format!("sys/class/net/{name}/ifindex"),
            &format!("{ifindex}\n"),
        );
        for queue in 0..queues {
            self.write(
                &format!("sys/class/net/{name}/queues/rx-{queue}/rps_cpus"),
                "0\n",
            );
        }
    }

    /// A link to a file of the running system.
    pub fn link(&self, file: &str, to: &str) {
        symlink(to, self.directory.path().join(file)).unwrap();
    }

    /// A process that does nothing.
    pub fn add_process(&self, pid: u32, comm: &str) {
        let name = format!("{comm}\n");
        self.write(&format!("proc/{pid}/task/{pid}/comm"), &name);
        let stat = format!("{pid} ({comm}) S 1 7 7 0 -1 0 1 0 0 0 2 3 0 0 20 0 1 0 4711 8 9\n");
        self.write(&format!("proc/{pid}/stat"), &stat);
    }

    /// Moves a directory, or makes it vanish.
    pub fn rename(&self, from: &str, to: &str) {
        let root = self.directory.path();
        fs::create_dir_all(root.join(to).parent().unwrap()).unwrap();
        fs::rename(root.join(from), root.join(to)).unwrap();
    }

    /// Transmit queues, each with what its mask of CPUs holds.
    pub fn add_transmit_queues(&self, name: &str, masks: &[&str]) {
        for (queue, mask) in masks.iter().enumerate() {
            self.write(
                &format!("sys/class/net/{name}/queues/tx-{queue}/xps_cpus"),
                &format!("{mask}\n"),
            );
        }
    }

    /// What the masks of all transmit queues hold.
    pub fn xps(&self, name: &str, queues: u32) -> Vec<String> {
        let file = |queue| format!("sys/class/net/{name}/queues/tx-{queue}/xps_cpus");
        (0..queues).map(|queue| self.read(&file(queue))).collect()
    }

    /// What the mask of a receive queue holds.
    pub fn rps(&self, name: &str, queue: u32) -> String {
        self.read(&format!("sys/class/net/{name}/queues/rx-{queue}/rps_cpus"))
    }

    pub fn affinity(&self, irq: u32) -> String {
        self.read(&format!("proc/irq/{irq}/smp_affinity_list"))
    }
}

/// A family with pollers on the given CPUs.
#[derive(Default)]
pub struct Family {
    pub pollers: Vec<u32>,
    pub napis: Vec<Napi>,
    /// Refuse to attach this queue.
    pub refuse_queue: Option<u32>,
    /// Refuse every attachment but the first, as to a caller without the privilege.
    pub lose_privilege: bool,
    /// Refuse every detach.
    pub refuse_detach: bool,
    /// How many detaches are left before they are refused.
    pub detaches: Option<u32>,
    /// How many questions it takes until an attached instance is served.
    pub slow: u32,
    /// What was asked for the backlog of each CPU.
    pub backlog: BTreeMap<u32, Backlog>,
    /// Refuse to have a poller serve a backlog, as PREEMPT_RT does.
    pub refuse_backlog: bool,
    /// Virtual interfaces with NAPI instances of their own.
    pub veths_with_napi: Vec<String>,
    /// Numbers of interfaces; every other one has 2.
    pub ifindex: BTreeMap<String, u32>,
    /// What pollers were created with.
    pub specs: BTreeMap<u32, PollerSpec>,
    /// The addresses that cards were made with.
    pub addresses: BTreeMap<String, String>,
}

pub fn refusal(errno: i32, message: &str) -> ClientError {
    let message = Some(message.to_owned());
    let refusal = Refusal {
        errno,
        message,
        offset: None,
        missing: None,
    };
    ClientError::Refused {
        what: "test".into(),
        refusal,
    }
}

pub fn napi(ifname: &str, queue: u32, cpu: u32) -> Napi {
    Napi {
        napi_id: 8193 + queue,
        ifindex: Some(2),
        ifname: Some(ifname.into()),
        queue: Some(queue),
        cpu,
        mode_requested: Mode::Busy,
        mode_active: Mode::Busy,
        class: CLASS,
        cpu_budget: None,
        max_wake_latency_us: None,
        netns_cookie: Some(COOKIE),
        stats: Stats::from_attrs(NAPI_COUNTERS, Attrs::default()).unwrap(),
    }
}

fn means(reference: &NapiRef, napi: &Napi) -> bool {
    match reference {
        NapiRef::Id(id) => napi.napi_id == *id,
        NapiRef::Queue { ifname, queue } => {
            napi.ifname.as_ref() == Some(ifname) && napi.queue == Some(*queue)
        }
    }
}

impl Control for Family {
    fn poller_new(&mut self, spec: &PollerSpec) -> Result<(), ClientError> {
        if self.pollers.contains(&spec.cpu) {
            return Err(refusal(libc::EEXIST, "this CPU has a poller already"));
        }
        let wants = spec
            .backlog
            .is_some_and(|wanted| wanted != Backlog::Softirq);
        if self.refuse_backlog && wants {
            let words = "this kernel can't leave its backlog to a poller";
            return Err(refusal(libc::EOPNOTSUPP, words));
        }
        self.pollers.push(spec.cpu);
        self.pollers.sort_unstable();
        let owns = spec.owns.unwrap_or(Owns::All);
        let default = match owns {
            Owns::All => Backlog::Owned,
            Owns::Attached => Backlog::Softirq,
        };
        let backlog = spec.backlog.unwrap_or(default);
        self.backlog.insert(spec.cpu, backlog);
        self.specs.insert(spec.cpu, spec.clone());
        Ok(())
    }

    fn permanent_address(&mut self, ifname: &str) -> Result<Option<String>, HostError> {
        Ok(self.addresses.get(ifname).cloned())
    }

    fn poller_get(&mut self, cpu: u32) -> Result<Poller, ClientError> {
        let poller = self.pollers()?.into_iter().find(|poller| poller.cpu == cpu);
        poller.ok_or_else(|| refusal(libc::ENXIO, "this CPU has no poller"))
    }

    fn poller_set_backlog(&mut self, cpu: u32, backlog: Backlog) -> Result<(), ClientError> {
        self.poller_get(cpu)?;
        if self.refuse_backlog && backlog != Backlog::Softirq {
            return Err(refusal(
                libc::EOPNOTSUPP,
                "this kernel can't leave its backlog to a poller",
            ));
        }
        self.backlog.insert(cpu, backlog);
        Ok(())
    }

    fn poller_del(&mut self, cpu: u32) -> Result<(), ClientError> {
        self.pollers.retain(|other| *other != cpu);
        self.napis.retain(|napi| napi.cpu != cpu);
        Ok(())
    }

    fn pollers(&mut self) -> Result<Vec<Poller>, ClientError> {
        let spec = |cpu: &u32| self.specs.get(cpu);
        let poller = |cpu: &u32| Poller {
            cpu: *cpu,
            owns: spec(cpu).and_then(|spec| spec.owns).unwrap_or(Owns::All),
            schedule: spec(cpu)
                .and_then(|spec| spec.schedule)
                .unwrap_or(Schedule::Fifo { priority: 50 }),
            budget: spec(cpu).and_then(|spec| spec.budget).unwrap_or(8),
            watchdog_ms: spec(cpu).and_then(|spec| spec.watchdog_ms).unwrap_or(20),
            state: State::Idle,
            pid: 100,
            napis: 0,
            backlog_requested: self.backlog.get(cpu).copied().unwrap_or(Backlog::Owned),
            backlog_active: self.backlog.get(cpu).copied().unwrap_or(Backlog::Owned),
            wake_latency_ns: None,
            freq_requested: spec(cpu).and_then(|spec| spec.freq).unwrap_or(Freq::Off),
            freq_active: spec(cpu).and_then(|spec| spec.freq).unwrap_or(Freq::Off),
            max_cstate_latency_us: spec(cpu).and_then(|spec| spec.max_cstate_latency_us),
            cstates_limited: None,
            rt_waits: Waits::default(),
            normal_waits: Waits::default(),
            bh_waits: None,
            stats: Stats::from_attrs(POLLER_COUNTERS, Attrs::default()).unwrap(),
        };
        Ok(self.pollers.iter().map(poller).collect())
    }

    fn napi_attach(
        &mut self,
        reference: &NapiRef,
        cpu: u32,
        service: &Service,
    ) -> Result<Napi, ClientError> {
        let attached = match reference {
            NapiRef::Queue { queue, .. } if self.refuse_queue == Some(*queue) => {
                return Err(refusal(libc::EOPNOTSUPP, "no NAPI instance for this queue"));
            }
            NapiRef::Queue { .. } if self.lose_privilege && !self.napis.is_empty() => {
                return Err(ClientError::NoPrivilege {
                    what: "attach".into(),
                });
            }
            NapiRef::Queue { ifname, queue } => Napi {
                ifindex: Some(self.ifindex.get(ifname).copied().unwrap_or(2)),
                ..napi(ifname, *queue, cpu)
            },
            NapiRef::Id(id) => Napi {
                napi_id: *id,
                queue: None,
                ..napi("eth0", 0, cpu)
            },
        };
        let attached = Napi {
            mode_requested: service.mode,
            mode_active: service.mode,
            class: service.class,
            cpu_budget: service.cpu_budget,
            max_wake_latency_us: service.max_wake_latency_us,
            ..attached
        };
        self.napis.push(attached.clone());
        Ok(attached)
    }

    fn napi_detach(&mut self, reference: &NapiRef) -> Result<(), ClientError> {
        if self.refuse_detach || self.detaches == Some(0) {
            return Err(refusal(libc::EIO, "detach refused by the test"));
        }
        self.detaches = self.detaches.map(|left| left - 1);
        let before = self.napis.len();
        self.napis.retain(|napi| !means(reference, napi));
        match self.napis.len() < before {
            true => Ok(()),
            false => Err(refusal(libc::ENOENT, "this NAPI instance is not attached")),
        }
    }

    fn napi_get(&mut self, reference: &NapiRef) -> Result<Napi, ClientError> {
        let found = self
            .napis
            .iter()
            .find(|napi| means(reference, napi))
            .cloned();
        let mut found =
            found.ok_or_else(|| refusal(libc::ENOENT, "this NAPI instance is not attached"))?;
        if self.slow > 0 {
            self.slow -= 1;
            found.mode_active = Mode::Softirq;
        }
        Ok(found)
    }

    fn napis(&mut self) -> Result<Vec<Napi>, ClientError> {
        Ok(self.napis.clone())
    }

    fn netns_cookie(&mut self) -> Result<u64, NetnsError> {
        Ok(COOKIE)
    }

    fn has_queue_napis(&mut self, ifname: &str) -> Result<bool, HostError> {
        Ok(self.veths_with_napi.iter().any(|name| name == ifname))
    }
}
