//! The image that the daemon inside runs: one static program, in an archive that `docker load` and `ctr image import` both
//! read (the format of `docker save`, version 1.2 of the Docker image specification). It must need no network and no registry.

use crate::Error;
use oci::Digest;
use serde_json::json;
use std::fs::{self, File};
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// As docker calls it; containerd calls it by [`INNER_IMAGE_FULL`].
pub(crate) const INNER_IMAGE: &str = "suite:inner";
pub(crate) const INNER_IMAGE_FULL: &str = "docker.io/library/suite:inner";
/// The program in it: the probe.
pub(crate) const INNER_PROGRAM: &str = "/probe";

/// Writes the archive to `path`. `architecture` is Go's name, as in an image configuration.
pub(crate) fn write(path: &Path, probe: &Path, architecture: &str) -> Result<(), Error> {
    let fault = |error| Error::io(format!("write {}", path.display()))(error);
    let program = fs::read(probe).map_err(Error::io(format!("read {}", probe.display())))?;
    let mut layer = Builder::new(Vec::new());
    append(&mut layer, INNER_PROGRAM.trim_start_matches('/'), 0o755, &program).map_err(fault)?;
    let layer = layer.into_inner().map_err(fault)?;
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Cmd": [INNER_PROGRAM, "true"] },
        "rootfs": { "type": "layers", "diff_ids": [Digest::of(&layer).to_string()] },
        "history": [{ "created_by": "the suite's probe" }],
    })
    .to_string();
    let config_name = format!("{}.json", Digest::of(config.as_bytes()).hex());
    let manifest = json!([{ "Config": config_name, "RepoTags": [INNER_IMAGE], "Layers": ["layer.tar"] }]).to_string();

    let mut archive = Builder::new(File::create(path).map_err(fault)?);
    append(&mut archive, &config_name, 0o644, config.as_bytes()).map_err(fault)?;
    append(&mut archive, "layer.tar", 0o644, &layer).map_err(fault)?;
    append(&mut archive, "manifest.json", 0o644, manifest.as_bytes()).map_err(fault)?;
    archive.into_inner().map(|_| ()).map_err(fault)
}

fn append<W: std::io::Write>(archive: &mut Builder<W>, name: &str, mode: u32, bytes: &[u8]) -> std::io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(mode);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, name, bytes)
}
