//! First process of a pod's or a node's namespaces: it keeps them alive, reaps orphans and exits on SIGTERM or SIGINT.

use std::process::ExitCode;

use rustix::process::{WaitOptions, wait};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> ExitCode {
    let mut signals = match Signals::new([SIGCHLD, SIGINT, SIGTERM]) {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("pause: cannot listen for signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    for signal in signals.forever() {
        if signal != SIGCHLD {
            return ExitCode::SUCCESS;
        }
        // One SIGCHLD may stand for several dead children.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
    ExitCode::SUCCESS
}
