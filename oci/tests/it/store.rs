//! A registry in memory that does what distribution-spec asks, and nothing odd: what misbehaves is around it, in `faulty`.
//! Blobs and manifests belong to a repository; what is sent is checked as real registries check it.

use std::collections::BTreeMap;

use oci::{Descriptor, Digest, Document, Index};
use reqwest::Url;
use serde_json::{Value, json};

use crate::server::{Request, head};

/// An answer before it is written.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn error(status: u16, code: &str, detail: &str) -> Self {
        let error =
            json!({"errors": [{"code": code, "message": "the registry of this trial says so", "detail": detail}]});
        Self { body: error.to_string().into_bytes(), ..Self::new(status) }
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.retain(|(held, _)| *held != name);
        self.headers.push((name, value.into()));
        self
    }

    /// The head, with the body's length unless a header says otherwise.
    pub(crate) fn head(&self) -> String {
        let length = self.body.len().to_string();
        let mut headers: Vec<(&str, &str)> = self.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        if !headers.iter().any(|(name, _)| matches!(*name, "Content-Length" | "Transfer-Encoding")) {
            headers.push(("Content-Length", &length));
        }
        head(&format!("{} It", self.status), &headers)
    }
}

/// A repository, and a digest or tag in it.
type Key = (String, String);

/// What the registry holds.
#[derive(Default)]
pub(crate) struct Store {
    blobs: BTreeMap<Key, Vec<u8>>,
    manifests: BTreeMap<Key, (String, Vec<u8>)>,
    tags: BTreeMap<Key, String>,
    sessions: BTreeMap<String, Vec<u8>>,
    opened: usize,
}

impl Store {
    /// Spec: distribution-spec `spec.md`, section "Endpoints".
    pub(crate) fn answer(&mut self, request: &Request) -> Answer {
        let url = Url::parse(&format!("http://it{}", request.path)).unwrap();
        let query: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
        let path = url.path().strip_prefix("/v2/").unwrap_or_default();
        let method = request.method.as_str();
        if let Some((repository, session)) = path.split_once("/blobs/uploads/") {
            return self.upload(method, repository, session, &query, request);
        }
        for (place, act) in [
            ("/blobs/", Self::blob as fn(&mut Self, &str, &Key, &Request) -> Answer),
            ("/manifests/", Self::manifest),
            ("/referrers/", Self::referrers),
        ] {
            if let Some((repository, reference)) = path.split_once(place) {
                return act(self, method, &(repository.to_owned(), reference.to_owned()), request);
            }
        }
        Answer::error(404, "UNSUPPORTED", path)
    }

    /// How many bytes of blobs there are.
    pub(crate) fn blob_bytes(&self) -> usize {
        self.blobs.values().map(Vec::len).sum()
    }

    /// Stores a blob as if it had been sent.
    pub(crate) fn seed(&mut self, repository: &str, bytes: &[u8]) {
        self.blobs.insert((repository.to_owned(), Digest::of(bytes).to_string()), bytes.to_vec());
    }

    /// Sections "Pushing blobs" and "Mounting a blob from another repository".
    fn upload(
        &mut self,
        method: &str,
        repository: &str,
        session: &str,
        query: &BTreeMap<String, String>,
        request: &Request,
    ) -> Answer {
        if method == "POST" {
            let source = query.get("from").zip(query.get("mount"));
            let mounted = source.and_then(|(from, digest)| self.blobs.get(&(from.clone(), digest.clone())).cloned());
            if let Some(bytes) = mounted {
                return self.created(repository, bytes);
            }
            self.opened += 1;
            let session = self.opened.to_string();
            self.sessions.insert(session.clone(), Vec::new());
            return Answer::new(202).with("Location", location(request, repository, &session));
        }
        let Some(held) = self.sessions.get_mut(session) else {
            return Answer::error(404, "BLOB_UPLOAD_UNKNOWN", session);
        };
        let start = request.header("content-range").map(|range| range.split('-').next().unwrap().parse::<usize>());
        if start.is_some_and(|start| start != Ok(held.len())) {
            return Answer::error(416, "BLOB_UPLOAD_INVALID", session);
        }
        held.extend(&request.body);
        let range = format!("0-{}", held.len().saturating_sub(1));
        let place = location(request, repository, session);
        match method {
            "GET" => Answer::new(204).with("Location", place).with("Range", range),
            "PATCH" => Answer::new(202).with("Location", place).with("Range", range),
            "PUT" => {
                let bytes = self.sessions.remove(session).unwrap();
                match query.get("digest") {
                    Some(digest) if *digest == Digest::of(&bytes).to_string() => self.created(repository, bytes),
                    digest => Answer::error(400, "DIGEST_INVALID", digest.map_or("none", String::as_str)),
                }
            }
            _ => Answer::error(405, "UNSUPPORTED", method),
        }
    }

    fn created(&mut self, repository: &str, bytes: Vec<u8>) -> Answer {
        let digest = Digest::of(&bytes).to_string();
        let place = format!("/v2/{repository}/blobs/{digest}");
        self.blobs.insert((repository.to_owned(), digest.clone()), bytes);
        Answer::new(201).with("Location", place).with("Docker-Content-Digest", digest)
    }

    /// Section "Pulling blobs"; RFC 9110, section 14, of ranges `bytes=N-`.
    fn blob(&mut self, method: &str, key: &Key, request: &Request) -> Answer {
        if !matches!(method, "GET" | "HEAD") {
            return Answer::error(405, "UNSUPPORTED", method);
        }
        let Some(bytes) = self.blobs.get(key) else { return Answer::error(404, "BLOB_UNKNOWN", &key.1) };
        let found = Answer::new(200).with("Docker-Content-Digest", key.1.as_str());
        let from =
            request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        match from {
            Some(from) if from >= bytes.len() => Answer::error(416, "SIZE_INVALID", &key.1),
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                Answer { status: 206, body: bytes[from..].to_vec(), ..found }.with("Content-Range", range)
            }
            None => Answer { body: bytes.clone(), ..found },
        }
    }

    /// Sections "Pulling manifests" and "Pushing Manifests".
    fn manifest(&mut self, method: &str, key: &Key, request: &Request) -> Answer {
        if method == "PUT" {
            return self.put_manifest(key, request);
        }
        let digest = self.tags.get(key).unwrap_or(&key.1).clone();
        match self.manifests.get(&(key.0.clone(), digest.clone())) {
            Some((media_type, bytes)) => Answer { body: bytes.clone(), ..Answer::new(200) }
                .with("Content-Type", media_type.as_str())
                .with("Docker-Content-Digest", digest),
            None => Answer::error(404, "MANIFEST_UNKNOWN", &digest),
        }
    }

    fn put_manifest(&mut self, (repository, reference): &Key, request: &Request) -> Answer {
        let digest = Digest::of(&request.body).to_string();
        if reference.contains(':') && *reference != digest {
            return Answer::error(400, "DIGEST_INVALID", reference);
        }
        let Ok(document) = Document::parse(request.body.clone()) else {
            return Answer::error(400, "MANIFEST_INVALID", reference);
        };
        let key = |named: &Descriptor| (repository.clone(), named.digest.to_string());
        let missing = match &document {
            Document::Index(index) => index.manifests().iter().find(|named| !self.manifests.contains_key(&key(named))),
            Document::Manifest(manifest) => {
                let mut named = manifest.layers().iter().chain([manifest.config()]);
                named.find(|named| !self.blobs.contains_key(&key(named)))
            }
        };
        if let Some(missing) = missing {
            return Answer::error(400, "MANIFEST_BLOB_UNKNOWN", &missing.digest.to_string());
        }
        let media_type = request.header("content-type").unwrap_or_default().to_owned();
        self.manifests.insert((repository.clone(), digest.clone()), (media_type, request.body.clone()));
        if *reference != digest {
            self.tags.insert((repository.clone(), reference.clone()), digest.clone());
        }
        let place = format!("/v2/{repository}/manifests/{digest}");
        let answer = Answer::new(201).with("Location", place).with("Docker-Content-Digest", digest);
        match subject(&request.body) {
            Some(subject) => answer.with("OCI-Subject", subject),
            None => answer,
        }
    }

    /// Section "Listing Referrers".
    fn referrers(&mut self, _: &str, (repository, wanted): &Key, _: &Request) -> Answer {
        let held = self
            .manifests
            .iter()
            .filter(|((place, _), (_, bytes))| place == repository && subject(bytes).as_ref() == Some(wanted));
        let entries: Vec<Value> = held
            .map(|(_, (media_type, bytes))| {
                let manifest: Value = serde_json::from_slice(bytes).unwrap();
                json!({"mediaType": media_type, "digest": Digest::of(bytes), "size": bytes.len(), "artifactType": manifest["artifactType"]})
            })
            .collect();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        let body = index.to_string().into_bytes();
        Index::parse(body.clone()).unwrap();
        Answer { body, ..Answer::new(200) }.with("Content-Type", INDEX)
    }
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn subject(manifest: &[u8]) -> Option<String> {
    let manifest: Value = serde_json::from_slice(manifest).unwrap();
    manifest["subject"]["digest"].as_str().map(str::to_owned)
}

/// Absolute, as docker-registry writes it.
fn location(request: &Request, repository: &str, session: &str) -> String {
    format!("http://{}/v2/{repository}/blobs/uploads/{session}?_state=it", request.header("host").unwrap())
}
