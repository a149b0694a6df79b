//! The image of the init alone: what is in it, and that the one line of init/README.md takes it into another image.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use oci::{Digest, Index, Interrupt, Layout, Limits, Platform};
use serde_json::{Value, json};
use xtask::stages::base::Image;

use crate::shop::done;
use crate::support::{built, ensure, folder, lacks, line_of_init_readme, run, trial_if};
use crate::workbench::{AMD64, Workbench};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_if("lone::one_file_and_its_entrypoint_on_every_platform", lacks(&["mmdebstrap"]), one_file),
        trial_if("lone::no_registry_is_asked_and_its_definition_names_the_time", lacks(&[]), no_base),
        trial_if("lone::the_line_of_the_readme_copies_it", lacks(&["mmdebstrap", "buildah"]), copied),
    ]
}

/// The platforms of a layout.
fn images(layout: &Layout) -> Result<BTreeMap<String, Image>, Failed> {
    let index = Index::parse(layout.bytes(&layout.index()?.manifests()[0])?)?;
    let name = |entry: &oci::Descriptor| entry.platform.as_ref().map(Platform::to_string).unwrap_or_default();
    index.manifests().iter().map(|entry| Ok((name(entry), Image::read(layout, entry)?))).collect()
}

fn one_file() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let mut command =
        crate::support::command(["build-images", "init", "--all-platforms", "--suite", "none", "--locked"]);
    done(&command.arg("--out").arg(bench.path("out")).output()?)?;
    let images = images(&Layout::open(&bench.path("out/init"))?)?;
    ensure(images.keys().eq([AMD64, "linux/arm64/v8"]), format!("{:?}", images.keys()))?;
    for (platform, image) in images {
        let config: Value = serde_json::from_slice(image.config.bytes())?;
        ensure(config["config"] == json!({ "Entrypoint": ["/dind-init", "--"] }), format!("{platform}: {config}"))?;
        ensure(config["created"] == "2026-11-30T00:00:00Z", format!("{platform}: {config}"))?;
        let manifest: Value = serde_json::from_slice(image.manifest.bytes())?;
        ensure(manifest.get("annotations").is_none(), format!("{platform}: it has no base to name: {manifest}"))?;
        let root = bench.path(&format!("root-{}", config["architecture"]));
        fs::create_dir(&root)?;
        let layers = oci::Layer::of_image(&image.manifest, &image.config)?;
        oci::unpack(&image.layout, &layers, &root, Limits::default(), &Interrupt::default())?;
        let names: Vec<_> = fs::read_dir(&root)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_, Failed>>()?;
        ensure(names == ["dind-init"], format!("{platform}: expected one file, found {names:?}"))?;
        let found = fs::metadata(root.join("dind-init"))?;
        let (mode, owner) = (found.permissions().mode() & 0o7777, (found.uid(), found.gid()));
        ensure(mode == 0o755 && owner == (0, 0), format!("{platform}: mode {mode:o}, owner {owner:?}"))?;
        let record = &bench.record("out")?["images"][0]["platforms"][&platform];
        let sum = Digest::of(&fs::read(root.join("dind-init"))?).hex();
        ensure(record["init"]["sha256"] == sum, format!("{platform}: expected {sum}, found {record}"))?;
    }
    Ok(())
}

fn no_base() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let record = |out: &str, arguments: &[&str]| -> Result<Value, Failed> {
        done(&bench.build_cut_off(out, &[&["init", "--suite", "none"], arguments].concat())?)?;
        Ok(bench.record(out)?["images"][0].clone())
    };
    let found = record("out", &["--base", "registry", "--locked"])?;
    ensure(found["base"] == json!({ "name": "scratch", "source": "scratch" }), format!("{found}"))?;
    ensure(found["platforms"][AMD64].get("base").is_none(), format!("{found}"))?;
    ensure(
        record("standin", &["--base", "standin"])?["digest"] == found["digest"],
        "another base makes another image",
    )?;
    let definition = bench.path("images/init.yaml");
    fs::write(&definition, fs::read_to_string(&definition)?.replace("2026-11-30", "2026-12-01"))?;
    let moved = record("out", &[])?;
    ensure(moved["created"] == "2026-12-01T00:00:00Z" && moved["digest"] != found["digest"], format!("{moved}"))
}

fn copied() -> Result<(), Failed> {
    let line = line_of_init_readme("COPY --from=")?;
    let image = line.strip_prefix("COPY --from=").and_then(|rest| rest.split(' ').next()).ok_or("no image")?;
    let folder = folder()?;
    // Beside the store there is a state, and locks, which would lie below /run.
    let state = tempfile::tempdir()?;
    let store = |arguments: &[&str]| {
        let mut command = Command::new("buildah");
        command.arg("--root").arg(folder.path().join("store")).arg("--runroot").arg(state.path());
        run(command.args(["--storage-driver", "vfs"]).args(arguments))
    };
    let layout = built()?.join("init");
    let id = store(&["pull", "--quiet", &format!("oci:{}:dind-init", layout.display())])?;
    store(&["tag", id.trim(), image])?;
    fs::write(folder.path().join("Containerfile"), format!("FROM scratch\n{line}\n"))?;
    let context = folder.path().display().to_string();
    store(&["build", "--quiet", "--pull-never", "--output", &format!("{context}/out"), &context])?;
    let copy = folder.path().join("out/usr/local/sbin/dind-init");
    ensure(fs::metadata(&copy)?.permissions().mode() & 0o7777 == 0o755, "its mode is another")?;
    // As PID 1 or not, it says which one it is.
    let said = run(Command::new(&copy).arg("--version"))?;
    ensure(said.contains("_dind-init - git."), format!("the copy says {said}"))
}
