//! Manifests and tags on the push side of the registry client, against odd answers.

use std::time::Duration;

use libtest_mimic::Trial;
use oci::{Client, Descriptor, Digest, Error, Reference};

use crate::client::{OK, options, repository};
use crate::push::{Push, TYPE, registry};
use crate::server::{Request, head, reply};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    let trials: [(&str, fn()); 4] = [
        ("tag::f46_a_head_without_a_digest_is_a_get", a_head_without_a_digest_is_a_get),
        ("tag::f47_a_manifest_is_sent_as_given", a_manifest_is_sent_as_given),
        ("tag::missing_blobs_are_named", missing_blobs_are_named),
        ("tag::f52_a_tag_is_read_back_until_it_fits", a_tag_is_read_back),
    ];
    trials.into_iter().map(|(name, test)| trial(name, &[], test)).collect()
}

fn a_head_without_a_digest_is_a_get() {
    let document = oci::Manifest::new(oci::Family::Oci, &Descriptor::of("a/b", b"{}"), &[]);
    let digest = document.digest();
    let bytes = document.bytes().to_vec();
    let length = bytes.len().to_string();
    let server = registry(move |request, _| {
        let headers =
            [("Content-Length", length.as_str()), ("Content-Type", "application/vnd.oci.image.manifest.v1+json; x=y")];
        let head = head(OK, &headers).into_bytes();
        Some(if request.method == "GET" { [head, bytes.clone()].concat() } else { head })
    });
    let client = Client::new(options()).unwrap();
    for (reference, calls) in [
        (Reference::Tagged(repository(&server).tagged("1").unwrap()), 2),
        (Reference::Pinned(repository(&server).pinned(digest)), 3),
    ] {
        assert_eq!(client.head(&reference).unwrap(), Some(document.descriptor()));
        assert_eq!(server.requests().len(), calls);
    }
}

fn a_manifest_is_sent_as_given() {
    let server = registry(|_, _| None);
    let push = Push::new(options());
    let odd = b"{ \"mediaType\" :\t1 }\n";
    let digest = Digest::of(odd);
    let pinned = Reference::Pinned(repository(&server).tagged("1").unwrap().pin(digest));
    assert_eq!(push.client.put_manifest(&pinned, TYPE, odd).unwrap(), digest);
    let request = &server.requests()[0];
    assert_eq!((request.body.as_slice(), request.header("content-type")), (&odd[..], Some(TYPE)));
    assert_eq!(request.path, format!("/v2/some/image/manifests/{digest}"));
    let other = push.client.put_manifest(&pinned, TYPE, b"{}");
    assert!(matches!(other, Err(Error::DigestMismatch { .. })), "{other:?}");
    assert_eq!(server.requests().len(), 1);
}

fn missing_blobs_are_named() {
    let digest = Digest::of(b"x");
    let body = format!(
        r#"{{"errors":[{{"code":"MANIFEST_BLOB_UNKNOWN","detail":"{digest}"}},{{"code":"MANIFEST_BLOB_UNKNOWN","detail":{{"digest":"{digest}"}}}}]}}"#
    );
    let server = registry(move |_, _| Some(reply("400 No", &[], body.as_bytes())));
    let error = Push::new(options()).manifest(&server).unwrap_err();
    assert!(error.to_string().ends_with(&format!("the repository lacks {digest}, {digest}")), "{error}");
    assert!(matches!(error, Error::BlobsUnknown { digests, .. } if digests == [digest, digest]));
}

fn a_tag_is_read_back() {
    let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
    let turns = move |request: &Request, count| {
        assert_eq!(request.method, "HEAD");
        let digest = if count < 2 { old } else { new }.to_string();
        let headers = [("Docker-Content-Digest", digest.as_str()), ("Content-Length", "3"), ("Content-Type", TYPE)];
        Some(match count {
            0 => reply("404 No", &[], b""),
            _ => head(OK, &headers).into_bytes(),
        })
    };
    let server = registry(turns);
    let tag = repository(&server).tagged("1").unwrap();
    let client = Client::new(options()).unwrap();
    client.await_tag(&tag, &new, Duration::from_secs(60)).unwrap();
    assert_eq!(server.requests().len(), 3);
    client.await_tag(&tag, &new, Duration::ZERO).unwrap();
    assert_eq!(server.requests().len(), 4);
    let error = client.await_tag(&tag, &old, Duration::from_millis(5)).unwrap_err();
    assert!(error.to_string().ends_with(&format!("expected {old}, found {new} after 5ms")), "{error}");
    assert!(matches!(error, Error::Tag { expected, found: Some(found), .. } if (expected, found) == (old, new)));
}
