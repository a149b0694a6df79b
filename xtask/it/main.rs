//! The integration tests of xtask: the house's rules, the command line, and the pipeline against real servers and daemons.
//! A trial that lacks root or a tool is ignored with its reason; where NO_SKIPS is set (in `cargo xtask test`), such a skip is a failure.

mod archive;
mod bases;
mod chain;
mod cli;
mod docker_init;
mod gate;
mod healing;
mod host;
mod house;
mod inits;
mod interrupt;
mod killed;
mod legs;
mod lenient;
mod lone;
mod outdated;
mod pipeline;
mod promote;
mod proof;
mod publish;
mod pulled;
mod pullers;
mod random;
mod readers;
mod refusals;
mod registry;
mod scale;
mod service;
mod shop;
mod support;
mod targets;
mod tripwire;
mod unstable;
mod workbench;
mod workflows;

use libtest_mimic::Arguments;

/// Trials mostly wait: for a daemon, a registry, another run's turn. So more of them run at a time than there are processors.
const THREADS: usize = 4;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let trials = [
        house::trials(),
        cli::trials(),
        pipeline::trials(),
        publish::trials(),
        promote::trials(),
        proof::trials(),
        targets::trials(),
        chain::trials(),
        gate::trials(),
        readers::trials(),
        archive::trials(),
        docker_init::trials(),
        bases::trials(),
        pullers::trials(),
        legs::trials(),
        lone::trials(),
        outdated::trials(),
        refusals::trials(),
        killed::trials(),
        interrupt::trials(),
        healing::trials(),
        pulled::trials(),
        workflows::trials(),
        scale::trials(),
        inits::trials(),
    ];
    let trials = trials.into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit();
}
