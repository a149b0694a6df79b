//! Publishing to Debian's docker-registry: that it takes what we send, in how many requests, and from whom.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use oci::{
    Client, Digest, Document, Error, Family, History, ImageConfig, LayerWriter, Layout, Manifest, Mount, Options,
    Permissions, Reference, Repository, Silent, Timestamp,
};

use crate::distribution::Registry;
use crate::field::{image, pull};
use crate::{Need, trial};

/// `it` with the password `p`, as `htpasswd -B` writes it.
const HTPASSWD: &str = "it:$2y$05$abcdefghijklmnopqrstuuqwWMzKt5N8p.u2GX5MuH1t19BMWuLOW\n";
/// base64 of `it:p`, and of `it:q`.
const RIGHT: &str = "aXQ6cA==";
const WRONG: &str = "aXQ6cQ==";

pub(crate) fn trials() -> Vec<Trial> {
    // Root, because links in our layers belong to it.
    let needs = &[Need::Root, Need::Tool("docker-registry")];
    vec![
        trial("publish::into_the_bases_repository_in_five_requests", needs, into_the_bases_repository),
        trial("publish::f33_into_another_repository_by_mounts", needs, into_another_repository),
        trial("publish::missing_blobs_are_all_named", needs, missing_blobs_are_named),
        trial("publish::with_a_password", needs, with_a_password),
        trial("publish::f30_another_compression_is_another_blob", needs, another_compression),
    ]
}

fn client() -> Client {
    Client::new(Options::default()).unwrap()
}

fn tag(repository: &Repository, tag: &str) -> Reference {
    Reference::Tagged(repository.tagged(tag).unwrap())
}

/// Sends an image whole.
pub(crate) fn push(client: &Client, to: &Repository, layout: &Layout, manifest: &Manifest) -> oci::Result<Digest> {
    for blob in manifest.layers().iter().chain([manifest.config()]) {
        client.push_blob(to, blob, layout, &Silent)?;
    }
    client.put_manifest(&tag(to, "1"), manifest.media_type(), manifest.bytes())
}

/// One layer more, in the layout of its base.
fn derive(layout: &Layout, base: &Manifest) -> Manifest {
    let created = Timestamp::from_epoch(1_700_000_000).unwrap();
    let mut writer = LayerWriter::new(layout, created).unwrap();
    writer.file("init", Permissions { mode: 0o755, uid: 0, gid: 0 }, b"init").unwrap();
    let layer = writer.finish().unwrap();
    let mut edit = ImageConfig::parse(layout.bytes(base.config()).unwrap()).unwrap().edit();
    edit.append_layer(layer.diff_id, &History { created, created_by: "it".to_owned(), comment: String::new() });
    let config = edit.finish();
    layout.put(&config.descriptor().media_type, config.bytes()).unwrap();
    let mut edit = base.edit();
    edit.config(&config.descriptor()).append_layer(&layer.descriptor);
    edit.finish()
}

/// A registry that has a base in `base`, and the image to publish.
fn derived(dir: &Path, registry: &mut Registry) -> (Layout, Manifest, Manifest) {
    let (layout, base) = image(&dir.join("made"));
    push(&client(), &registry.repository("base"), &layout, &base).unwrap();
    registry.methods();
    let derived = derive(&layout, &base);
    (layout, base, derived)
}

fn into_the_bases_repository() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = Registry::start();
    let (layout, base, image) = derived(dir.path(), &mut registry);
    let (client, to) = (client(), registry.repository("base"));
    let new = [image.layers().last().unwrap(), image.config()];
    for blob in new {
        client.push_blob(&to, blob, &layout, &Silent).unwrap();
    }
    client.put_manifest(&tag(&to, "ours"), image.media_type(), image.bytes()).unwrap();
    assert_eq!(registry.methods(), ["POST", "PUT", "POST", "PUT", "PUT"]);
    client.await_tag(&to.tagged("ours").unwrap(), &image.digest(), Duration::from_secs(10)).unwrap();
    assert_eq!(registry.methods(), ["HEAD"]);
    // Nothing to do is one request.
    let found = client.head(&tag(&to, "ours")).unwrap();
    assert_eq!(found, Some(image.descriptor()));
    assert_eq!(registry.methods(), ["HEAD"]);
    assert_eq!(client.head(&tag(&to, "none")).unwrap(), None);
    assert_eq!(client.head(&Reference::Pinned(to.pinned(base.digest()))).unwrap(), Some(base.descriptor()));
    // What was published is what was made.
    let Document::Manifest(published) = client.resolve(&to.tagged("ours").unwrap()).unwrap() else { panic!() };
    assert_eq!(published.bytes(), image.bytes());
    pull(&client, &to, &published, dir.path());
}

fn into_another_repository() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = Registry::start();
    let (layout, base, image) = derived(dir.path(), &mut registry);
    let (client, from, to) = (client(), registry.repository("base"), registry.repository("other/place"));
    let mut expected = Vec::new();
    for blob in base.layers() {
        assert!(matches!(client.mount(&from, &to, blob).unwrap(), Mount::Mounted));
        expected.push("POST");
    }
    // The new layer is nowhere yet: the session of its mount takes it.
    let layer = image.layers().last().unwrap();
    let Mount::Upload(upload) = client.mount(&from, &to, layer).unwrap() else { panic!() };
    client.upload(upload, &layout, &Silent).unwrap();
    push(&client, &to, &layout, &image).unwrap();
    expected.extend(["POST", "PUT", "POST", "PUT", "PUT"]);
    assert_eq!(registry.methods(), expected);
    pull(&client, &to, &image, dir.path());
}

fn missing_blobs_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start();
    let (_, manifest) = image(&dir.path().join("made"));
    let to = registry.repository("empty");
    let error = client().put_manifest(&tag(&to, "1"), manifest.media_type(), manifest.bytes()).unwrap_err();
    let Error::BlobsUnknown { mut digests, .. } = error else { panic!("{error}") };
    let mut expected: Vec<Digest> = manifest.layers().iter().map(|layer| layer.digest).collect();
    expected.push(manifest.config().digest);
    digests.sort_unstable();
    expected.sort_unstable();
    assert_eq!(digests, expected);
    // An index is refused for the manifests that it names.
    let entry = manifest.descriptor().with_platform(oci::Platform::host());
    let index = oci::Index::new(Family::Oci, &[entry]).unwrap();
    let error = client().put_manifest(&tag(&to, "1"), index.media_type(), index.bytes()).unwrap_err();
    assert!(matches!(&error, Error::BlobsUnknown { digests, .. } if *digests == [manifest.digest()]), "{error}");
}

/// The same layer, once as it is and once compressed: one diff id, two blobs, and both are sent.
fn another_compression() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = Registry::start();
    let (layout, manifest) = image(dir.path());
    let compressed = &manifest.layers()[0];
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&layout.bytes(compressed).unwrap()[..]).read_to_end(&mut plain).unwrap();
    let plain = layout.put("application/vnd.oci.image.layer.v1.tar", &plain).unwrap();
    let to = registry.repository("both");
    client().push_blobs(&to, &[compressed.clone(), plain.clone()], &layout, &Silent).unwrap();
    let sent = registry.methods();
    assert_eq!(sent.iter().filter(|method| *method == "PUT").count(), 2, "{sent:?}");
    for blob in [compressed, &plain] {
        assert!(client().has_blob(&to, blob).unwrap(), "{blob:?}");
    }
}

fn with_a_password() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, manifest) = image(&dir.path().join("made"));
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("htpasswd"), HTPASSWD).unwrap();
    let auth = format!("auth: {{htpasswd: {{realm: it, path: {}}}}}\n", home.path().join("htpasswd").display());
    let mut registry = Registry::start_with(home, &auth);
    let to = registry.repository("guarded");
    let config = dir.path().join("config.json");
    for (auth, fits) in [(RIGHT, true), (WRONG, false)] {
        fs::write(&config, format!(r#"{{"auths":{{"{}":{{"auth":"{auth}"}}}}}}"#, registry.host())).unwrap();
        let client = Client::new(Options { credentials: Some(config.clone()), ..Options::default() }).unwrap();
        match push(&client, &to, &layout, &manifest) {
            Ok(digest) => assert!(fits && digest == manifest.digest()),
            Err(error) => assert!(!fits && matches!(error, Error::Unauthorized { .. }), "{error}"),
        }
    }
    // The one refusal, two layers, the config, the manifest; then the refusal of the other password.
    assert_eq!(registry.methods(), ["POST", "POST", "PUT", "POST", "PUT", "POST", "PUT", "PUT", "POST", "POST"]);
    let nobody = push(&client(), &to, &layout, &manifest);
    assert!(matches!(nobody, Err(Error::Unauthorized { .. })), "{nobody:?}");
}
