//! With the field's own tools: Debian's docker-registry serves what skopeo pushed, and skopeo and umoci read what we wrote.

use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use oci::{
    Client, Document, Error, Family, History, ImageConfig, Index, Interrupt, Layer, LayerWriter, Layout, Limits,
    Manifest, Options, Permissions, Platform, Repository, Silent, Tagged, Timestamp,
};

use crate::distribution::Registry;
use crate::{Need, trial};

pub(crate) fn trials() -> Vec<Trial> {
    // Root, because links in our layers belong to it.
    let registry = &[Need::Root, Need::Tool("docker-registry"), Need::Tool("skopeo")];
    vec![
        trial("field::docker_registry_gives_what_skopeo_pushed", registry, docker_registry_gives_what_skopeo_pushed),
        trial("field::docker_typed_images_become_oci_layouts", registry, docker_typed_images_become_oci_layouts),
        trial("field::f07_skopeo_reads_our_layouts", &[Need::Tool("skopeo")], skopeo_reads_our_layouts),
        trial("field::umoci_unpacks_our_layouts", &[Need::Tool("umoci")], umoci_unpacks_our_layouts),
    ]
}

/// An image of two layers, tagged `1`, in a layout of its own.
pub(crate) fn image(dir: &Path) -> (Layout, Manifest) {
    let layout = Layout::open_or_create(dir).unwrap();
    let created = Timestamp::from_epoch(1_674_187_200).unwrap();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owned = |mode| Permissions { mode, uid, gid };
    let mut lower = LayerWriter::new(&layout, created).unwrap();
    lower.directory("etc", owned(0o755)).unwrap();
    lower.file("etc/motd", owned(0o644), b"hello").unwrap();
    lower.symlink("link", "etc/motd").unwrap();
    let mut upper = LayerWriter::new(&layout, created).unwrap();
    upper.file("etc/.wh.motd", owned(0o644), b"").unwrap();
    upper.file("etc/issue", owned(0o600), b"two").unwrap();
    upper.hard_link("etc/issue.net", owned(0o600), "etc/issue").unwrap();
    let layers = [lower.finish().unwrap(), upper.finish().unwrap()];
    let mut edit = ImageConfig::new(&Platform::host(), created).edit();
    for layer in &layers {
        let history = History { created, created_by: "it".to_owned(), comment: String::new() };
        edit.append_layer(layer.diff_id, &history);
    }
    let config = edit.entrypoint(&["/init"]).set_env("PATH", "/bin").finish();
    layout.put(&config.descriptor().media_type, config.bytes()).unwrap();
    let descriptors = layers.map(|layer| layer.descriptor);
    let manifest = Manifest::new(Family::Oci, &config.descriptor(), &descriptors);
    layout.put(manifest.media_type(), manifest.bytes()).unwrap();
    let entry = manifest.descriptor().with_platform(Platform::host()).with_ref_name("1");
    layout.write_index(&[entry]).unwrap();
    (layout, manifest)
}

/// Runs a tool to its end; returns what it printed.
pub(crate) fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).output().unwrap();
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{name} {arguments:?}: {talk}");
    String::from_utf8(output.stdout).unwrap()
}

fn push(registry: &Registry, layout: &Layout, path: &str, format: &str) {
    let source = format!("oci:{}:1", layout.dir().display());
    let target = format!("docker://{}:1", registry.repository(path));
    tool(
        "skopeo",
        &["copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false", "--format", format, &source, &target],
    );
}

/// Fetches all blobs of an image and unpacks it.
pub(crate) fn pull(client: &Client, repository: &Repository, manifest: &Manifest, dir: &Path) -> Layout {
    let layout = Layout::open_or_create(&dir.join("pulled")).unwrap();
    for blob in manifest.layers().iter().chain([manifest.config()]) {
        client.blob(repository, blob, &layout, &Silent).unwrap();
    }
    let config = ImageConfig::parse(layout.bytes(manifest.config()).unwrap()).unwrap();
    assert_eq!((config.entrypoint(), config.path()), (vec!["/init"], Some("/bin")));
    let root = dir.join("root");
    fs::create_dir(&root).unwrap();
    let layers = Layer::of_image(manifest, &config).unwrap();
    oci::unpack(&layout, &layers, &root, Limits::default(), &Interrupt::default()).unwrap();
    check_root(&root);
    layout
}

fn check_root(root: &Path) {
    assert_eq!(fs::read_to_string(root.join("etc/issue.net")).unwrap(), "two");
    assert!(!root.join("etc/motd").exists());
    assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("etc/motd"));
}

fn docker_registry_gives_what_skopeo_pushed() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, manifest) = image(&dir.path().join("made"));
    let registry = Registry::start();
    push(&registry, &layout, "library/docker", "oci");
    // By tag, through a mirror for docker.io.
    let mirrors = vec![("docker.io".to_owned(), format!("http://127.0.0.1:{}", registry.port()))];
    let client = Client::new(Options { mirrors, ..Options::default() }).unwrap();
    let tagged = Tagged::parse("docker:1").unwrap();
    let Document::Manifest(found) = client.resolve(&tagged).unwrap() else { panic!("expected a manifest") };
    assert_eq!(found.bytes(), manifest.bytes());
    // By digest, from the registry itself.
    let repository = registry.repository("library/docker");
    let by_digest = client.manifest(&repository, &manifest.digest()).unwrap();
    assert_eq!(by_digest.bytes(), manifest.bytes());
    pull(&client, &tagged.repository, &manifest, dir.path());
    let missing = client.resolve(&repository.tagged("2").unwrap()).unwrap_err();
    assert!(matches!(&missing, Error::NotFound { answer, .. } if answer.starts_with("MANIFEST_UNKNOWN")), "{missing}");
    let other = oci::Digest::of(b"other");
    assert!(matches!(client.manifest(&repository, &other), Err(Error::NotFound { .. })));
}

fn docker_typed_images_become_oci_layouts() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, _) = image(&dir.path().join("made"));
    let registry = Registry::start();
    push(&registry, &layout, "typed", "v2s2");
    let client = Client::new(Options::default()).unwrap();
    let repository = registry.repository("typed");
    let Document::Manifest(typed) = client.resolve(&repository.tagged("1").unwrap()).unwrap() else { panic!() };
    assert_eq!(typed.family(), Family::Docker);
    let pulled = pull(&client, &repository, &typed, dir.path());
    let oci = typed.to_oci();
    pulled.put(oci.media_type(), oci.bytes()).unwrap();
    pulled.write_index(&[oci.descriptor().with_platform(Platform::host()).with_ref_name("x")]).unwrap();
    inspect(&pulled, "x");
}

fn inspect(layout: &Layout, tag: &str) {
    let text = tool("skopeo", &["inspect", &format!("oci:{}:{tag}", layout.dir().display())]);
    assert!(text.contains(r#""PATH=/bin""#), "{text}");
}

fn skopeo_reads_our_layouts() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, manifest) = image(dir.path());
    inspect(&layout, "1");
    // An index in the index, as we write for several platforms.
    let entry = manifest.descriptor().with_platform(Platform::host());
    let index = Index::new(Family::Oci, &[entry]).unwrap();
    layout.put(index.media_type(), index.bytes()).unwrap();
    layout.write_index(&[index.descriptor().with_ref_name("all")]).unwrap();
    inspect(&layout, "all");
}

fn umoci_unpacks_our_layouts() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, _) = image(&dir.path().join("made"));
    let bundle = dir.path().join("bundle");
    let image = format!("{}:1", layout.dir().display());
    let rootless = if rustix::process::geteuid().is_root() { &[][..] } else { &["--rootless"] };
    tool("umoci", &[&["unpack", "--image", &image], rootless, &[&bundle.display().to_string()]].concat());
    check_root(&bundle.join("rootfs"));
}
