// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab's commands as a program of their own, for work on the lab itself.

use clap::Parser;

#[derive(Parser)]
#[command(about = "Boots stock Debian kernels in QEMU and runs a script in them")]
struct Program {
    #[command(subcommand)]
    command: kbp_lab::cli::LabCommand,
}

fn main() -> std::process::ExitCode {
    kbp_lab::cli::run(Program::parse().command).into()
}
