//! Damage to what earlier runs have left: the next run finds it, makes it anew, and ends with the digests that it would have had.

use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Failed, Trial};
use oci::{Index, Layout, Manifest};

use crate::support::{command, ensure, folder, lacks, repository, said, standin, trial_alone_if};

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial_alone_if("healing::damage_is_found_and_made_good", lacks(&["mmdebstrap"]), damage)]
}

/// How a file is damaged.
type Damage = fn(&Path) -> std::io::Result<()>;

fn damage() -> Result<(), Failed> {
    let folder = folder()?;
    let out = folder.path().join("out");
    let whole = build(&out)?;
    let standin = standin()?;
    let layout = Layout::open(&standin.layout)?;
    let base = Manifest::parse(layout.bytes(&standin.post)?)?;
    let largest = base.layers().iter().max_by_key(|layer| layer.size).ok_or("the stand-in has no layers")?;
    let dind = Layout::open(&out.join("dind"))?;
    let rootfs = repository().join("target/cache/rootfs").join(base.digest().hex());

    let damages: [(&str, PathBuf, Damage); 5] = [
        ("a layer of the stand-in", layout.blob_path(&largest.digest), flip),
        ("the stand-in's index", layout.dir().join("index.json"), garble),
        ("a layer of the image", dind.blob_path(&largest.digest), flip),
        ("the image's index", dind.dir().join("index.json"), garble),
        ("the image's layout mark", dind.dir().join("oci-layout"), garble),
    ];
    for (what, path, damage) in damages {
        // Both names of a blob that is linked into two layouts are damaged, as by a disk.
        damage(&path)?;
        let found = build(&out)?;
        ensure(found == whole, format!("after damage to {what}: expected {whole}, found {found}"))?;
        sound(&out.join("dind")).map_err(|error| format!("after damage to {what}: {error:?}"))?;
    }
    // Carved from the unpacked base as it lies there, the image would lack the file.
    fs::remove_file(rootfs.join("etc/passwd"))?;
    let fresh = run(&out, &["--fresh"])?;
    ensure(fresh == whole, format!("--fresh from a damaged root: expected {whole}, found {fresh}"))
}

fn build(out: &Path) -> Result<String, Failed> {
    run(out, &[])
}

/// Builds every image and returns their digests, one line each.
fn run(out: &Path, arguments: &[&str]) -> Result<String, Failed> {
    let output =
        command(["build-images", "--base", "standin", "--suite", "none", "--out"]).arg(out).args(arguments).output()?;
    ensure(output.status.code() == Some(0), said(&output))?;
    let record: serde_json::Value = serde_json::from_slice(&fs::read(out.join("digests.json"))?)?;
    let images = record["images"].as_array().ok_or("no images")?;
    Ok(images.iter().map(|image| format!("{}\n", image["digest"])).collect())
}

/// Every blob of the layout is the one that its name says.
fn sound(folder: &Path) -> Result<(), Failed> {
    let layout = Layout::open(folder)?;
    for index in layout.index()?.manifests() {
        for child in Index::parse(layout.bytes(index)?)?.manifests() {
            let manifest = Manifest::parse(layout.bytes(child)?)?;
            for blob in std::iter::once(manifest.config()).chain(manifest.layers()) {
                layout.read(blob, |_| Ok::<_, oci::Error>(()))?;
            }
        }
    }
    Ok(())
}

fn flip(path: &Path) -> std::io::Result<()> {
    let mut bytes = fs::read(path)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes)
}

fn garble(path: &Path) -> std::io::Result<()> {
    fs::write(path, "{")
}
