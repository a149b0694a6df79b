//! Many images: what two hundred cost, held against twenty. Counts and peaks only: no trial here asks how long anything took.

use std::path::Path;

use libtest_mimic::{Failed, Trial};
use xtask::bench::LAYERS;
use xtask::bench::scale::{Figures, PLATFORMS, Scale, repository};

use crate::support::{ensure, lacks, trial_if};

const FEW: usize = 20;
const MANY: usize = 200;
/// The machines that the platforms are for: each has an init and so a layer of its own.
const MACHINES: usize = 2;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial_if("scale::two_hundred_images_on_four_platforms", lacks(&["docker-registry"]), two_hundred)]
}

fn two_hundred() -> Result<(), Failed> {
    let said = |error: anyhow::Error| format!("{error:#}");
    // In memory: tens of thousands of small files, each of them synced, would only measure the disk.
    let folder = tempfile::Builder::new().prefix("trial-").tempdir_in("/dev/shm")?;
    let mut scale = Scale::open(folder.path()).map_err(said)?;
    let program = Path::new(env!("CARGO_BIN_EXE_xtask"));
    let mut run = |images| scale.run(program, images, &oci::Interrupt::default()).map_err(said);
    let (few, many) = (run(FEW)?, run(MANY)?);
    sent_once(&few)?;
    sent_once(&many)?;
    ensure(
        many.peak * 2 <= few.peak * 3,
        format!("memory grows: {} bytes for {FEW} images, {} bytes for {MANY}", few.peak, many.peak),
    )
}

/// The base's layers are mounted once, the init's layers sent once, and then every image costs the same: a configuration and a manifest for
/// each platform, an index, and one look at its tag.
fn sent_once(figures: &Figures) -> Result<(), Failed> {
    let (images, platforms) = (figures.images, PLATFORMS.len());
    let place = repository(images);
    let expected = [
        ("POST", "blobs", LAYERS + MACHINES + platforms * images),
        ("PUT", "blobs", MACHINES + platforms * images),
        ("PUT", "manifests", (platforms + 1) * images),
        ("HEAD", "manifests", images),
    ];
    for (method, what, expected) in expected {
        let found = figures.count(&format!("{method} /v2/{place}/{what}"));
        ensure(found == expected, format!("{images} images: {method} {what}: expected {expected}, found {found}"))?;
    }
    // Beside these, the base alone was asked for.
    let all = expected.iter().map(|(.., count)| count).sum::<usize>() + figures.count("GET /v2/base/");
    let found = figures.requests.len();
    ensure(found == all, format!("{images} images: expected {all} requests, found {found}"))
}
