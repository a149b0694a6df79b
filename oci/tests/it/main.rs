//! What oci does with real files, real sockets and the field's own tools. A trial that lacks root or a tool is ignored with
//! its reason, and counted, or fails where NO_SKIPS is set; none needs a network beyond loopback.

#![expect(clippy::unwrap_used, reason = "a trial's panic is how it fails")]

mod bearer;
mod client;
mod distribution;
mod faults;
mod faulty;
mod field;
mod https;
mod killed;
mod limits;
mod login;
mod memory;
mod mirrors;
mod patience;
mod publish;
mod push;
mod relay;
mod resume;
mod routes;
mod server;
mod store;
mod tag;
mod tarball;
mod tls;
mod unpack;
mod verbs;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};

/// What a trial cannot do without.
#[derive(Clone, Copy)]
enum Need {
    Root,
    Tool(&'static str),
}

impl Need {
    /// Why a trial that needs it cannot run here.
    fn missing(self) -> Option<String> {
        match self {
            Self::Root => (!rustix::process::geteuid().is_root()).then(|| "needs root".to_owned()),
            Self::Tool(tool) => (!is_installed(tool)).then(|| format!("needs {tool}")),
        }
    }
}

fn is_installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(tool).is_file())
}

fn trial(name: &str, needs: &'static [Need], test: fn()) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(reason) = needs.iter().find_map(|need| need.missing()) {
            let forbidden = std::env::var_os("NO_SKIPS").is_some();
            return if forbidden { Err(reason.into()) } else { Ok(Completion::ignored_with(reason)) };
        }
        test();
        Ok(Completion::Completed)
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == memory::CHILD) {
        return memory::child(&arguments[1..]);
    }
    if arguments.first().is_some_and(|first| first == killed::CHILD) {
        return killed::child(&arguments[1..]);
    }
    if arguments.first().is_some_and(|first| first == login::CHILD) {
        return login::push_in_child(&arguments[1..]);
    }
    if arguments.first().is_some_and(|first| first == routes::CHILD) {
        return routes::child(&arguments[1..]);
    }
    let trials = [
        bearer::trials(),
        client::trials(),
        faults::trials(),
        field::trials(),
        killed::trials(),
        limits::trials(),
        login::trials(),
        memory::trials(),
        mirrors::trials(),
        patience::trials(),
        publish::trials(),
        push::trials(),
        resume::trials(),
        routes::trials(),
        tag::trials(),
        tls::trials(),
        unpack::trials(),
        verbs::trials(),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials.into_iter().flatten().collect()).exit_code()
}
