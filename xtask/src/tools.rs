//! The files that the pipeline and its tests need beside Rust, and the Debian packages that bring them. Installs nothing: `cmd::setup` does.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// A file that the pipeline or its tests need, and the package that brings it.
#[derive(Debug)]
pub struct Tool {
    /// A name on PATH, or an absolute path.
    pub file: &'static str,
    /// The Debian package.
    pub package: &'static str,
    /// What needs it.
    pub why: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { file: "unshare", package: "util-linux", why: "tests: an init as PID 1" },
    Tool { file: "pgrep", package: "procps", why: "tests: how users find a daemon" },
    Tool { file: "setpriv", package: "util-linux", why: "stand-in base" },
    Tool {
        file: "/usr/share/keyrings/debian-archive-keyring.gpg",
        package: "debian-archive-keyring",
        why: "stand-in base",
    },
    Tool { file: "mmdebstrap", package: "mmdebstrap", why: "stand-in base" },
    Tool { file: "/usr/lib/x86_64-linux-musl/libc.a", package: "musl-dev", why: "static init" },
    Tool { file: "/usr/lib/x86_64-linux-gnu/libc.a", package: "libc6-dev", why: "static probe" },
    Tool { file: "tini-static", package: "tini", why: "the suite's control" },
    Tool { file: "tini", package: "tini", why: "tests and bench: another init" },
    Tool { file: "catatonit", package: "catatonit", why: "tests and bench: another init" },
    Tool { file: "dumb-init", package: "dumb-init", why: "tests and bench: another init" },
    Tool { file: "chrt", package: "util-linux", why: "tests: signals at a moment" },
    Tool { file: "qemu-aarch64-static", package: "qemu-user-static", why: "tests: programs of another architecture" },
    Tool { file: "skopeo", package: "skopeo", why: "tests: a second reader and writer of layouts" },
    Tool { file: "umoci", package: "umoci", why: "tests: a second reader of layouts" },
    Tool { file: "buildah", package: "buildah", why: "tests: a reader of registries" },
    Tool { file: "podman", package: "podman", why: "tests: a reader of registries" },
    Tool { file: "openssl", package: "openssl", why: "tests: a token server that signs, and certificates" },
    Tool { file: "pip3", package: "python3-pip", why: "tests: the linters of the workflows" },
    Tool { file: "docker-registry", package: "docker-registry", why: "tests: a real registry" },
];

/// The path of a tool on PATH or at its own place. Error: it is missing; names it, its package and this command.
pub fn require(file: &str) -> Result<PathBuf> {
    if let Some(path) = find(file) {
        return Ok(path);
    }
    match TOOLS.iter().find(|tool| tool.file == file) {
        Some(tool) => bail!(
            "find {file} ({}): it is not on this machine\nhint: cargo xtask setup installs it (Debian package {})",
            tool.why,
            tool.package
        ),
        None => bail!("find {file}: it is not on this machine"),
    }
}

/// Asks for every tool. Error: as [`require`], for the first that is missing.
pub fn require_all() -> Result<()> {
    TOOLS.iter().try_for_each(|tool| require(tool.file).map(drop))
}

/// The tools that this machine lacks.
pub fn missing() -> Vec<&'static Tool> {
    TOOLS.iter().filter(|tool| find(tool.file).is_none()).collect()
}

/// Where a tool is, on PATH or at its own place.
pub fn find(file: &str) -> Option<PathBuf> {
    if file.starts_with('/') {
        return Path::new(file).exists().then(|| file.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(file)).find(|candidate| candidate.is_file())
}
