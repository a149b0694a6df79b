//! The tests that need root, real namespaces and built artefacts. Each trial that lacks one of them is ignored with its
//! reason; xtask names the artefacts by the environment variables in fixture.rs.

mod engine;
mod fixture;
mod init;
mod leftovers;
mod mutation;
mod restart;

use libtest_mimic::Arguments;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = init::helper().or_else(leftovers::helper) {
        return code;
    }
    let arguments = Arguments::from_args();
    let trials = [init::trials(), engine::trials(), leftovers::trials(), mutation::trials(), restart::trials()];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code()
}
