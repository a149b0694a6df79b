//! How trials fill a registry: with images of a layout, byte for byte.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Failed;
use xtask::bench::Registry;

use crate::support::ensure;

/// Copies an image of an OCI layout into the registry, every byte as it is.
pub(crate) fn seed(registry: &Registry, layout: &Path, tag: &str, name: &str) -> Result<(), Failed> {
    let output = Command::new("skopeo")
        .args(["copy", "--quiet", "--all", "--preserve-digests", "--dest-tls-verify=false"])
        .arg(format!("oci:{}:{tag}", layout.display()))
        .arg(format!("docker://{}/{name}", registry.host()))
        .output()?;
    ensure(output.status.success(), format!("seed {name}: {}", String::from_utf8_lossy(&output.stderr)))
}
