//! The two images of a stand-in: their configs as the official ones were, their layers, and the layout that holds both.

use anyhow::{Context, Result};
use oci::{Descriptor, Family, History, ImageConfig, Index, Interrupt, Layer, Layout, Manifest, Platform, Timestamp};

use super::arrangement::{Arrangement, Sources};
use crate::spec::Flavour;
use crate::stages::contents::{self, Contents};

/// Both flavours, in the order of their tags in the layout's index.
pub(super) const FLAVOURS: [Flavour; 2] = [Flavour::Pre, Flavour::Post];

/// What the official images were configured with, `KEY=VALUE`, in their order: docker:20.10.7-dind of 2021-07-19 (config of the
/// image that the report names) and the last docker:20-dind, of 2023-05-12. The versions are theirs; Debian's are in the record.
const ENV_PRE: &[(&str, &str)] = &[
    ("PATH", PATH),
    ("DOCKER_VERSION", "20.10.7"),
    ("DOCKER_TLS_CERTDIR", "/certs"),
    ("DIND_COMMIT", "42b1175eda071c0e9121e1d64345928384a93df1"),
];
const ENV_POST: &[(&str, &str)] = &[
    ("PATH", PATH),
    ("DOCKER_VERSION", "20.10.24"),
    ("DOCKER_BUILDX_VERSION", "0.10.4"),
    ("DOCKER_COMPOSE_VERSION", "2.17.3"),
    ("DOCKER_TLS_CERTDIR", "/certs"),
    ("DIND_COMMIT", "1f32e3c95d72a29b3eaacba156ed675dba976cb5"),
];
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Says in the manifest what the image is: the config has the official image's keys and no others.
const DESCRIPTION: (&str, &str) = (
    "org.opencontainers.image.description",
    "stand-in for docker.io/library/docker:20-dind, built from Debian's packages; not the official image",
);

/// The tag of a flavour in the layout.
pub fn tag(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Pre => "20-dind-pre",
        Flavour::Post => "20-dind",
    }
}

/// Writes both images into `layout`, each as an index of one platform under its tag. All times are `created`.
pub(super) fn write(
    layout: &Layout,
    arrangement: &Arrangement,
    sources: Sources<'_>,
    platform: &Platform,
    created: Timestamp,
    interrupt: &Interrupt,
) -> Result<()> {
    let scripts = FLAVOURS.map(|flavour| Arrangement::flavour(flavour, sources));
    let write = |contents: &Contents| contents::write(contents, layout, created, interrupt);
    // The two large layers side by side, each on a core.
    let (docker, system, containerd) = std::thread::scope(|scope| {
        let docker = scope.spawn(|| write(&arrangement.docker));
        let system = write(&arrangement.system);
        let containerd = write(&arrangement.containerd);
        (docker.join().expect("a layer writer does not panic"), system, containerd)
    });
    let (system, docker, containerd) = (system?, docker?, containerd?);

    let mut entries = Vec::new();
    for (flavour, scripts) in FLAVOURS.into_iter().zip(scripts) {
        let layers = [
            (system.clone(), "Debian's packages, unpacked and arranged"),
            (docker.clone(), "dockerd, docker, docker-proxy, docker-init in /usr/local/bin"),
            (containerd.clone(), "containerd, its shims, ctr and runc in /usr/local/bin"),
            (write(&scripts?)?, "scripts, accounts and folders for certificates"),
        ];
        let config = config(flavour, platform, created, &layers);
        let config_blob = layout.put(&config.descriptor().media_type, config.bytes())?;
        let blobs = layers.map(|(layer, _)| layer.descriptor);
        let manifest =
            Manifest::new(Family::Oci, &config_blob, &blobs).edit().annotation(DESCRIPTION.0, DESCRIPTION.1).finish();
        layout.put(manifest.media_type(), manifest.bytes())?;
        let index = Index::new(Family::Oci, &[manifest.descriptor().with_platform(platform.clone())])?;
        layout.put(index.media_type(), index.bytes())?;
        entries.push(index.descriptor().with_ref_name(tag(flavour)));
    }
    Ok(layout.write_index(&entries)?)
}

/// The manifest of a flavour for a platform in a layout that [`write`] has written.
pub(super) fn find(layout: &Layout, flavour: Flavour, platform: &Platform) -> Result<Descriptor> {
    let index = layout.index()?;
    let named = index.named(tag(flavour));
    let entry =
        named.first().with_context(|| format!("find {} in {}: no such tag", tag(flavour), layout.dir().display()))?;
    let images = Index::parse(layout.bytes(entry)?)?;
    Ok(images.select(platform)?.clone())
}

fn config(flavour: Flavour, platform: &Platform, created: Timestamp, layers: &[(Layer, &str)]) -> ImageConfig {
    let variables = match flavour {
        Flavour::Pre => ENV_PRE,
        Flavour::Post => ENV_POST,
    };
    let mut edit = ImageConfig::new(platform, created).edit();
    for (key, value) in variables {
        edit.set_env(key, value);
    }
    edit.entrypoint(&["dockerd-entrypoint.sh"]);
    edit.cmd::<&str>(&[]);
    edit.volumes(&["/var/lib/docker"]);
    edit.exposed_ports(&["2375/tcp", "2376/tcp"]);
    for (layer, content) in layers {
        let history = History { created, created_by: (*content).to_owned(), comment: "stand-in".to_owned() };
        edit.append_layer(layer.diff_id, &history);
    }
    edit.finish()
}
