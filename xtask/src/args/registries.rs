//! How registries and repositories are named on the command line. Does no I/O; the registry client checks what a URL may be.

use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use oci::Repository;
use serde::Serialize;

const MIRROR_EXPECTED: &str = "expected HOST=URL, such as docker.io=http://127.0.0.1:5000";

/// How registries are reached.
#[derive(Debug, Clone, Default, Args, Serialize)]
pub struct Registries {
    /// Ask URL before the registry HOST; repeatable, tried in order
    #[arg(long, value_name = "HOST=URL", value_parser = Mirror)]
    pub mirror: Vec<(String, String)>,
    /// Speak plain http to the registry HOST; repeatable (loopback needs no permission)
    #[arg(long, value_name = "HOST")]
    pub insecure: Vec<String>,
    /// Speak https to the registry HOST and nothing else, though it is loopback; repeatable
    #[arg(long, value_name = "HOST")]
    pub secure: Vec<String>,
    /// Trust the CA certificates in FILE (PEM) beside the system's; repeatable
    #[arg(long, value_name = "FILE")]
    pub ca: Vec<PathBuf>,
}

impl Registries {
    /// Adds mirrors behind those that are there, as `--mirror` would; `text` holds any number of HOST=URL between blanks. Error: one is none.
    pub fn add_mirrors(&mut self, text: &str) -> Result<(), &'static str> {
        self.mirror.extend(text.split_whitespace().map(split).collect::<Option<Vec<_>>>().ok_or(MIRROR_EXPECTED)?);
        Ok(())
    }
}

/// Parses a repository. Error: it is none, and a hint where what was meant can be guessed.
pub(super) fn repository(text: &str) -> Result<Repository, String> {
    Repository::parse(text).map_err(|error| {
        let name = text.rsplit('/').next().unwrap_or(text);
        let is_host = |host: &str| host == "localhost" || (host.contains(['.', ':']) && !host.contains(['/', '@']));
        let hint = if text.contains("://") {
            "\nhint: leave out the scheme; --insecure HOST permits plain http"
        } else if text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok()) {
            "\nhint: a registry alone is no repository; add a path: HOST:PORT/PATH"
        } else if name.contains([':', '@']) {
            "\nhint: leave out the tag or digest; tags are those of the images' definitions"
        } else {
            ""
        };
        format!("{error}{hint}")
    })
}

/// Splits `HOST=URL`; the client checks both. Its error never shows what was typed, which may hold a password.
#[derive(Debug, Clone)]
struct Mirror;

impl TypedValueParser for Mirror {
    type Value = (String, String);

    fn parse_ref(
        &self,
        command: &clap::Command,
        _: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let pair = value.to_str().and_then(split);
        pair.ok_or_else(|| command.clone().error(ErrorKind::ValueValidation, format!("--mirror: {MIRROR_EXPECTED}")))
    }
}

fn split(text: &str) -> Option<(String, String)> {
    text.split_once('=').map(|(host, url)| (host.to_owned(), url.to_owned()))
}
