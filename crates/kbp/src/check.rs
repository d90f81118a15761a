// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp check`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use kbp_core::check::{check, Item, Verdict};
use kbp_core::Class;

use crate::context::Context;
use crate::print;

/// Arguments of `kbp check`.
#[derive(Args)]
pub struct CheckArgs {
    /// Check what this module file needs too.
    #[arg(long, value_name = "PATH")]
    module: Option<PathBuf>,
}

/// Run `kbp check`.
pub fn run(args: CheckArgs, context: &Context) -> Result<ExitCode> {
    let report = check(&context.host, args.module.as_deref())?;
    if context.json {
        print::json(context, &report)?;
    } else {
        print::line(format!("kernel {}", report.kernel))?;
        print::lines(report.items.iter().map(describe))?;
        print::lines(
            report
                .remarks
                .iter()
                .map(|remark| format!("  note     {remark}")),
        )?;
        print::line(match report.possible {
            true => "kbp can work on this kernel".into(),
            false => format!("kbp can't work on this kernel: {}", report.reason()),
        })?;
    }
    Ok(match report.possible {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(Class::Unsupported.exit_code()),
    })
}

fn describe(item: &Item) -> String {
    let mark = match item.verdict {
        Verdict::Pass => "ok     ",
        Verdict::Unknown => "unknown",
        Verdict::Fail => "NO     ",
    };
    format!("  {mark}  {}: {}", item.condition, item.detail)
}
