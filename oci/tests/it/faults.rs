//! A whole image, pushed and pulled through the fault server: each switch ends in the same digests, or in the one right
//! error. The control is the same image through the same server with all switches off.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use libtest_mimic::Trial;
use oci::{
    Client, Descriptor, Digest, Document, Error, Family, Layout, Manifest, Mount, Options, Reference, Repository,
    Silent,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::client::options;
use crate::faulty::{Cut, DRIP_BYTES, Early, Faults, Faulty};
use crate::publish::push;
use crate::trial;

/// How long the registry may be silent where it drips.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the tag may name something else.
const TAG_TIMEOUT: Duration = Duration::from_millis(100);
const OURS: &str = "some/image";
/// The layers: less than one piece of a dripping body, and several.
const LAYER_BYTES: [usize; 2] = [100, 3 * DRIP_BYTES + 1];

pub(crate) fn trials() -> Vec<Trial> {
    let trials: [(&str, fn()); 13] = [
        ("faults::none_is_the_control", none_is_the_control),
        ("faults::f38_bodies_are_cut", bodies_are_cut),
        ("faults::f39_every_method_is_throttled", every_method_is_throttled),
        ("faults::f42_tokens_die_in_mid_push", tokens_die),
        ("faults::f34_mounts_open_sessions", mounts_open_sessions),
        ("faults::f35_locations_are_relative", locations_are_relative),
        ("faults::f46_digest_headers_are_wrong_or_missing", digest_headers_are_wrong),
        ("faults::f36_only_chunks_are_taken", only_chunks_are_taken),
        ("faults::f36_201_comes_early", created_comes_early),
        ("faults::f44_blobs_are_elsewhere", blobs_are_elsewhere),
        ("faults::blobs_drip", blobs_drip),
        ("faults::f10_bodies_are_longer_than_promised", bodies_are_longer),
        ("faults::referrers_are_there_or_not", referrers_are_there_or_not),
    ];
    trials.into_iter().map(|(name, test)| trial(name, &[], test)).collect()
}

/// An image of two layers in a layout.
struct Image {
    dir: TempDir,
    layout: Layout,
    manifest: Manifest,
}

impl Image {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(&dir.path().join("made")).unwrap();
        let bytes = |count: usize| (0..count).map(|at| (at % 251) as u8).collect::<Vec<_>>();
        let layers =
            LAYER_BYTES.map(|count| layout.put("application/vnd.oci.image.layer.v1.tar+gzip", &bytes(count)).unwrap());
        let config = layout.put("application/vnd.oci.image.config.v1+json", b"{}").unwrap();
        let manifest = Manifest::new(Family::Oci, &config, &layers);
        Self { dir, layout, manifest }
    }

    fn blobs(&self) -> Vec<Descriptor> {
        self.manifest.layers().iter().chain([self.manifest.config()]).cloned().collect()
    }

    fn blob_bytes(&self) -> usize {
        self.blobs().iter().map(|blob| blob.size as usize).sum()
    }

    /// Pulls all of it by its tag into a new layout, and compares.
    fn pull(&self, client: &Client, from: &Repository) -> oci::Result<()> {
        let pulled = tempfile::tempdir_in(self.dir.path()).unwrap();
        let layout = Layout::open_or_create(pulled.path()).unwrap();
        let document = client.resolve(&from.tagged("1").unwrap())?;
        let Document::Manifest(manifest) = document else { panic!("an index") };
        assert_eq!(manifest.bytes(), self.manifest.bytes());
        for blob in self.blobs() {
            // One after another, as the server answers: what waits for its turn would look silent.
            client.blob(from, &blob, &layout, &Silent)?;
            assert_eq!(layout.bytes(&blob).unwrap(), self.layout.bytes(&blob).unwrap());
        }
        Ok(())
    }

    /// Pushes and pulls all of it.
    fn through(&self, faulty: &Faulty, options: Options) -> oci::Result<()> {
        let (client, to) = (Client::new(options).unwrap(), faulty.repository(OURS));
        let digest = push(&client, &to, &self.layout, &self.manifest)?;
        assert_eq!(digest, self.manifest.digest());
        client.await_tag(&to.tagged("1").unwrap(), &digest, TAG_TIMEOUT)?;
        assert_eq!(faulty.blob_bytes(), self.blob_bytes());
        self.pull(&client, &to)
    }
}

fn through(faults: Faults) -> (oci::Result<()>, Faulty) {
    let faulty = Faulty::start(faults);
    (Image::new().through(&faulty, options()), faulty)
}

fn calls(faulty: &Faulty, method: &str) -> usize {
    faulty.server.requests().iter().filter(|request| request.method == method).count()
}

fn none_is_the_control() {
    let (result, faulty) = through(Faults::default());
    result.unwrap();
    // Three blobs, the manifest, its HEAD; the manifest and three blobs.
    let count = ["POST", "PUT", "HEAD", "GET", "PATCH"].map(|method| calls(&faulty, method));
    assert_eq!(count, [3, 4, 1, 4, 0]);
    assert_eq!(faulty.storage.requests().len(), 0);
    // And it checks what it is sent.
    let (image, client) = (Image::new(), Client::new(options()).unwrap());
    let tag = Reference::Tagged(faulty.repository("else/where").tagged("1").unwrap());
    let refused = client.put_manifest(&tag, image.manifest.media_type(), image.manifest.bytes());
    assert!(matches!(refused, Err(Error::BlobsUnknown { .. })), "{refused:?}");
}

fn bodies_are_cut() {
    let (result, faulty) = through(Faults { cut: Some(Cut { after: DRIP_BYTES, times: 2 }), ..Faults::default() });
    result.unwrap();
    assert_eq!(calls(&faulty, "GET"), 4 + 2);
    let (result, _) = through(Faults { cut: Some(Cut { after: 0, times: usize::MAX }), ..Faults::default() });
    assert!(matches!(result, Err(Error::Cut { .. })), "{result:?}");
}

fn every_method_is_throttled() {
    let (result, faulty) = through(Faults { throttled: Some("0"), ..Faults::default() });
    result.unwrap();
    for (method, honest) in [("POST", 3), ("PUT", 4), ("HEAD", 1), ("GET", 4)] {
        assert!(calls(&faulty, method) > honest, "{method}");
    }
    let (result, faulty) = through(Faults { throttled: Some("86400"), ..Faults::default() });
    assert!(matches!(result, Err(Error::Throttled { seconds: 86400, .. })), "{result:?}");
    assert_eq!(faulty.server.requests().len(), 1);
}

fn tokens_die() {
    // Every third request finds its token dead, whatever it is.
    let (result, faulty) = through(Faults { token_uses: Some(2), ..Faults::default() });
    result.unwrap();
    let tokens = faulty.server.calls().iter().filter(|call| *call == "GET /token").count();
    assert!(tokens > 4, "{tokens}");
    let (result, _) = through(Faults { token_uses: Some(0), ..Faults::default() });
    assert!(matches!(result, Err(Error::Unauthorized { .. })), "{result:?}");
}

fn mounts_open_sessions() {
    for (mounts_open_sessions, sent) in [(true, 3), (false, 0)] {
        let faulty = Faulty::start(Faults { mounts_open_sessions, ..Faults::default() });
        let (image, client) = (Image::new(), Client::new(options()).unwrap());
        let (from, to) = (faulty.repository("the/base"), faulty.repository(OURS));
        for blob in image.blobs() {
            faulty.seed("the/base", &image.layout.bytes(&blob).unwrap());
            if let Mount::Upload(upload) = client.mount(&from, &to, &blob).unwrap() {
                client.upload(upload, &image.layout, &Silent).unwrap();
            }
        }
        push(&client, &to, &image.layout, &image.manifest).unwrap();
        image.pull(&client, &to).unwrap();
        // A session of a mount is used: no other is asked for.
        assert_eq!([calls(&faulty, "POST"), calls(&faulty, "PUT")], [3, sent + 1]);
    }
}

fn locations_are_relative() {
    let (result, faulty) = through(Faults { relative_locations: true, ..Faults::default() });
    result.unwrap();
    assert_eq!([calls(&faulty, "POST"), calls(&faulty, "PUT")], [3, 4]);
    let (head, _) = raw(&faulty, &format!("POST /v2/{OURS}/blobs/uploads/"));
    assert!(head.contains(&format!("\r\nLocation: /v2/{OURS}/blobs/uploads/")), "{head}");
}

fn digest_headers_are_wrong() {
    let lie = Digest::of(b"something else");
    for method in ["PUT", "HEAD", "GET"] {
        let (result, _) = through(Faults { wrong_digest: Some(method), ..Faults::default() });
        let error = result.unwrap_err();
        let fits = match &error {
            // Of a tag nobody knows better than the registry; it is what was waited for, or not.
            Error::Tag { found, .. } => method == "HEAD" && *found == Some(lie),
            Error::DigestMismatch { found, subject, .. } => {
                *found == lie && subject.contains(&format!(" {method} http://"))
            }
            _ => false,
        };
        assert!(fits, "{method}: {error:?}");
    }
    let (result, faulty) = through(Faults { no_digest: true, ..Faults::default() });
    result.unwrap();
    let (head, _) = raw(&faulty, &format!("GET /v2/{OURS}/manifests/1"));
    assert!(head.starts_with("HTTP/1.1 200 ") && !head.contains("Docker-Content-Digest"), "{head}");
}

fn only_chunks_are_taken() {
    let (result, faulty) = through(Faults { body_bytes_max: Some(DRIP_BYTES), ..Faults::default() });
    result.unwrap();
    // One layer is too large: refused whole, then sent as one chunk, whose session is closed by a PUT of nothing.
    let count = ["POST", "PATCH", "PUT"].map(|method| calls(&faulty, method));
    assert_eq!(count, [4, 1, 5]);
}

fn created_comes_early() {
    let (result, _) = through(Faults { early: Some(Early::Session), ..Faults::default() });
    assert!(matches!(&result, Err(Error::Protocol { .. })), "{result:?}");
    let said = result.unwrap_err().to_string();
    assert!(said.contains("expected an upload session") && said.contains("does not have the blob"), "{said}");
    // Where the blobs are there already, it is no lie.
    let (image, faulty) = (Image::new(), Faulty::start(Faults { early: Some(Early::Session), ..Faults::default() }));
    for blob in image.blobs() {
        faulty.seed(OURS, &image.layout.bytes(&blob).unwrap());
    }
    image.through(&faulty, options()).unwrap();
    let chunked = Faults { body_bytes_max: Some(DRIP_BYTES), early: Some(Early::Chunk), ..Faults::default() };
    let (result, faulty) = through(chunked);
    result.unwrap();
    assert_eq!(["PATCH", "HEAD"].map(|method| calls(&faulty, method)), [1, 2]);
}

fn blobs_are_elsewhere() {
    let (result, faulty) = through(Faults { blobs_elsewhere: true, token_uses: Some(usize::MAX), ..Faults::default() });
    result.unwrap();
    let (here, there) = (faulty.server.requests(), faulty.storage.requests());
    assert!(here.iter().any(|request| request.header("authorization").is_some()), "the control");
    assert_eq!(there.len(), 3);
    for request in there {
        assert!(request.path.ends_with("?signed=1") && request.header("authorization").is_none(), "{request:?}");
    }
}

fn blobs_drip() {
    // The large layer takes twice as long as silence may.
    let drips = |pause| {
        let faulty = Faulty::start(Faults { drip: Some(pause), ..Faults::default() });
        Image::new().through(&faulty, Options { read_timeout: READ_TIMEOUT, ..options() })
    };
    drips(READ_TIMEOUT / 2).unwrap();
    let result = drips(READ_TIMEOUT * 2);
    assert!(matches!(result, Err(Error::Cut { .. })), "{result:?}");
}

fn bodies_are_longer() {
    let (result, faulty) = through(Faults { longer: 1, ..Faults::default() });
    assert!(matches!(result, Err(Error::SizeMismatch { .. })), "{result:?}");
    assert!(calls(&faulty, "GET") <= 4, "it is not tried again");
}

/// The head and body of the server's own answer, past the client.
fn raw(faulty: &Faulty, call: &str) -> (String, String) {
    let mut stream = TcpStream::connect(faulty.server.host()).unwrap();
    write!(stream, "{call} HTTP/1.1\r\nHost: it\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn referrers_are_there_or_not() {
    for there in [true, false] {
        let (result, faulty) = through(Faults { referrers: there, ..Faults::default() });
        result.unwrap();
        let image = Image::new();
        let mut attached: Value = serde_json::from_slice(image.manifest.bytes()).unwrap();
        attached["artifactType"] = "application/vnd.it".into();
        attached["subject"] = serde_json::json!({
            "mediaType": image.manifest.media_type(), "digest": image.manifest.digest(), "size": image.manifest.bytes().len()
        });
        let attached = attached.to_string().into_bytes();
        let to = Reference::Pinned(faulty.repository(OURS).pinned(Digest::of(&attached)));
        let client = Client::new(options()).unwrap();
        client.put_manifest(&to, image.manifest.media_type(), &attached).unwrap();
        let (head, list) = raw(&faulty, &format!("GET /v2/{OURS}/referrers/{}", image.manifest.digest()));
        assert_eq!(head.starts_with("HTTP/1.1 200 "), there, "{head}");
        let list: Value = serde_json::from_str(&list).unwrap();
        let entry = &list["manifests"][0];
        let expected = if there { Value::from(Digest::of(&attached).to_string()) } else { Value::Null };
        assert_eq!(entry["digest"], expected);
        assert_eq!(entry["artifactType"] == "application/vnd.it", there);
    }
}
