// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp show`.

use anyhow::Result;
use kbp_core::module::ModuleStatus;
use kbp_core::overview::{overview, AttachedNapi};

use crate::context::Context;
use crate::poller::print_pollers;
use crate::print;

/// Run `kbp show`.
pub fn run(context: &Context) -> Result<()> {
    let overview = overview(&context.host)?;
    if context.json {
        return print::json(context, &overview);
    }
    print::line(describe_module(&overview.module))?;
    print::line("")?;
    print_pollers(&overview.pollers)?;
    print::line("")?;
    print_napis(&overview.napis)?;
    crate::steered::print(&overview)
}

fn describe_module(module: &ModuleStatus) -> String {
    let version = module.version.as_deref().unwrap_or("of unknown version");
    let livepatch = match &module.livepatch {
        Some(livepatch) if livepatch.transition && livepatch.enabled => "taking hold",
        Some(livepatch) if livepatch.transition => "being taken out",
        Some(livepatch) if livepatch.enabled => "in use",
        _ => "switched off",
    };
    format!("module kbp {version}, live patch {livepatch}")
}

fn print_napis(napis: &[AttachedNapi]) -> Result<()> {
    if napis.is_empty() {
        return print::line(
            "no receive queue attached; `kbp attach DEV[:QUEUE] --cpu N` attaches one",
        );
    }
    let row = |attached: &AttachedNapi| {
        let (napi, irq) = (&attached.napi, attached.irq.as_ref());
        vec![
            print::or_dash(napi.ifname.as_ref()),
            print::or_dash(napi.queue),
            napi.napi_id.to_string(),
            napi.cpu.to_string(),
            napi.mode_requested.to_string(),
            napi.mode_active.to_string(),
            napi.class.to_string(),
            print::or_dash(irq.map(|irq| format!("{} {}", irq.vector.irq, irq.vector.name))),
            print::or_dash(irq.map(|irq| &irq.affinity_requested)),
            print::or_dash(irq.and_then(|irq| irq.affinity_active.as_ref())),
            print::or_dash(irq.and_then(|irq| irq.affinity_original.as_ref())),
        ]
    };
    let header = [
        "DEV",
        "QUEUE",
        "NAPI",
        "CPU",
        "REQUESTED",
        "ACTIVE",
        "CLASS",
        "IRQ",
        "IRQ-REQUESTED",
        "IRQ-ACTIVE",
        "IRQ-BEFORE",
    ];
    print::table(&header, napis.iter().map(row).collect(), header.len())
}
