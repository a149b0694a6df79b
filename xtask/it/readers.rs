//! What others make of our layouts: skopeo, umoci and a real containerd read them. And what changed against the base: only what the
//! definitions name. What others make of a registry that we published to is in `pullers`.

use std::fs;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use oci::{Descriptor, ImageConfig, Index, Layout, Manifest};
use serde_json::Value;

use crate::host::Host;
use crate::support::{built, ensure, folder, lacks, run, standin, trial_if};

/// The images with their tags, and where each has the init.
const IMAGES: [(&str, &str, &str); 3] = [
    ("dind", "20-dind", "/usr/local/sbin/dind-init"),
    ("containerd", "20-containerd", "/usr/local/sbin/dind-init"),
    ("init", "dind-init", "/dind-init"),
];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_if("readers::skopeo_reads_every_layout", lacks(&["mmdebstrap", "skopeo"]), skopeo),
        trial_if("readers::umoci_unpacks_every_layout", lacks(&["mmdebstrap", "umoci"]), umoci),
        trial_if("readers::containerd_imports_every_layout", lacks(&["mmdebstrap"]), containerd),
        trial_if("readers::only_the_named_keys_differ_from_the_base", lacks(&["mmdebstrap"]), difference),
        trial_if("readers::the_carved_image_is_at_most_half_its_base", lacks(&["mmdebstrap"]), carved_size),
    ]
}

fn skopeo() -> Result<(), Failed> {
    for (image, tag, init) in IMAGES {
        let layout = format!("oci:{}:{tag}", built()?.join(image).display());
        let seen: Value = serde_json::from_str(&run(Command::new("skopeo").args(["inspect", &layout]))?)?;
        ensure(seen["Architecture"] == "amd64" && seen["Os"] == "linux", format!("{seen}"))?;
        let config: Value = serde_json::from_str(&run(Command::new("skopeo").args(["inspect", "--config", &layout]))?)?;
        ensure(config["config"]["Entrypoint"][0] == init, format!("{config}"))?;
    }
    Ok(())
}

fn umoci() -> Result<(), Failed> {
    for (image, tag, init) in IMAGES {
        let folder = folder()?;
        let bundle = folder.path().join("bundle");
        let layout = format!("{}:{tag}", built()?.join(image).display());
        run(Command::new("umoci").args(["unpack", "--image", &layout]).arg(&bundle))?;
        ensure(fs::metadata(bundle.join(format!("rootfs{init}")))?.is_file(), format!("{image}: {init} is missing"))?;
        let config: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
        ensure(config["process"]["args"][0] == init, format!("{}", config["process"]))?;
    }
    Ok(())
}

fn containerd() -> Result<(), Failed> {
    let engine = crate::support::engine()?;
    let folder = folder()?;
    for (image, tag, _) in IMAGES {
        let archive = folder.path().join(format!("{image}.tar"));
        run(Command::new("tar")
            .arg("--create")
            .arg("--file")
            .arg(&archive)
            .arg("--directory")
            .arg(built()?.join(image))
            .arg("."))?;
        let host = Host::start(&engine, &["containerd"], vec![(archive, "/mnt/image.tar".into())])?;
        host.wait_until(&["ctr", "version"])?;
        host.exec(&["ctr", "image", "import", "--base-name", &format!("example.test/{image}"), "/mnt/image.tar"])?;
        let listed = host.exec(&["ctr", "image", "list", "--quiet"])?;
        ensure(listed.contains(tag), format!("expected {tag} among the images, found {listed}"))?;
        host.remove()?;
    }
    Ok(())
}

/// The derived and the base configuration of an image.
fn configs(image: &str) -> Result<(Value, Value), Failed> {
    let standin = standin()?;
    let base = Layout::open(&standin.layout)?;
    let base = config(&base, &standin.post)?;
    let derived = Layout::open(&built()?.join(image))?;
    let index = Index::parse(derived.bytes(&derived.index()?.manifests()[0])?)?;
    let derived = config(&derived, &index.manifests()[0])?;
    Ok((serde_json::from_slice(base.bytes())?, serde_json::from_slice(derived.bytes())?))
}

fn config(layout: &Layout, manifest: &Descriptor) -> Result<ImageConfig, Failed> {
    let manifest = Manifest::parse(layout.bytes(manifest)?)?;
    Ok(ImageConfig::parse(layout.bytes(manifest.config())?)?)
}

fn difference() -> Result<(), Failed> {
    let cases = [
        ("dind", &["/config/Entrypoint", "/config/Env", "/history", "/rootfs/diff_ids"][..]),
        (
            "containerd",
            &[
                "/config/Cmd",
                "/config/Entrypoint",
                "/config/Env",
                "/config/ExposedPorts",
                "/config/Volumes//var/lib/containerd",
                "/config/Volumes//var/lib/docker",
                "/history",
                "/rootfs/diff_ids",
            ],
        ),
    ];
    for (image, expected) in cases {
        let (base, derived) = configs(image)?;
        let mut found = Vec::new();
        compare("", &base, &derived, &mut found);
        found.sort();
        ensure(found == expected, format!("{image}: expected only {expected:?} to differ, found {found:?}"))?;
    }
    let (base, derived) = configs("dind")?;
    let env = |config: &Value| config["config"]["Env"].as_array().cloned().unwrap_or_default();
    let expected = [env(&base), vec!["DIND_INIT_GRACE=5s".into(), "TINI_SUBREAPER=".into()]].concat();
    ensure(env(&derived) == expected, format!("expected {expected:?}, found {:?}", env(&derived)))?;
    let (before, after) = (base["history"].as_array(), derived["history"].as_array());
    let (before, after) = before.zip(after).ok_or("no history")?;
    ensure(
        after.len() == before.len() + 1 && after.starts_with(before),
        "expected the base's history and one entry more",
    )
}

/// The paths at which two JSON values differ; arrays count as a whole.
fn compare(path: &str, left: &Value, right: &Value, found: &mut Vec<String>) {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let absent = Value::Null;
                compare(
                    &format!("{path}/{key}"),
                    left.get(key).unwrap_or(&absent),
                    right.get(key).unwrap_or(&absent),
                    found,
                );
            }
        }
        _ if left != right => found.push(path.to_owned()),
        _ => {}
    }
}

fn carved_size() -> Result<(), Failed> {
    let record: Value = serde_json::from_slice(&fs::read(built()?.join("digests.json"))?)?;
    let images = record["images"].as_array().ok_or("no images")?;
    let carved = images.iter().find(|image| image["name"] == "containerd").ok_or("no containerd image")?;
    let standin = standin()?;
    let layout = Layout::open(&standin.layout)?;
    let base = xtask::stages::base::Image::read(&layout, &standin.post)?;
    let base: u64 = base.manifest.blobs().map(|blob| blob.size).sum();
    let size = carved["platforms"]["linux/amd64"]["size"].as_u64().ok_or("no size")?;
    ensure(size * 2 <= base, format!("expected at most half of {base} bytes, found {size}"))
}
