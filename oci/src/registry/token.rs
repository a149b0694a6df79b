//! Authorization: which header a request carries, and the tokens behind it. Spec: the distribution project's "Token
//! Authentication Specification" and "Oauth2 Token Authentication". A token is asked for once and kept for its life; one
//! that is refused is replaced. Never sends credentials to a host that [`Bearer::is_trusted`] does not name.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Url};
use tokio::time::Instant;

use super::answer::{Answer, Failure};
use super::auth::{Access, Bearer, Challenge, covers};
use super::credentials::{Credentials, Identity};
use super::endpoint;
use super::transport::Transport;
use crate::error::{Error, Result};
use crate::json;

/// Largest answer of a token server that is read.
const TOKEN_BYTES_MAX: u64 = 256 * 1024;
/// The life of a token whose server does not tell (token specification, `expires_in`).
const TOKEN_LIFE: Duration = Duration::from_secs(60);
/// No token is kept longer, whatever its server says.
const TOKEN_LIFE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What registries asked of us, and what we may show them.
#[derive(Debug)]
pub(super) struct Authority {
    credentials: Credentials,
    realms: Vec<(String, String)>,
    /// By origin.
    challenges: Mutex<HashMap<String, Challenge>>,
    tokens: Mutex<Vec<Token>>,
    /// Held while a token is asked for, so that several threads that miss the same one ask once.
    asking: tokio::sync::Mutex<()>,
}

/// A token of one registry, by what it was asked for.
struct Token {
    origin: String,
    realm: Url,
    service: Option<String>,
    scopes: Vec<String>,
    value: HeaderValue,
    until: Instant,
}

impl Authority {
    pub(super) fn new(credentials: Credentials, realms: Vec<(String, String)>) -> Self {
        Self {
            credentials,
            realms,
            challenges: Mutex::default(),
            tokens: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    fn challenge(&self, origin: &str) -> Option<Challenge> {
        self.challenges.lock().unwrap_or_else(PoisonError::into_inner).get(origin).cloned()
    }

    fn remember(&self, origin: String, challenge: &Challenge) {
        self.challenges.lock().unwrap_or_else(PoisonError::into_inner).insert(origin, challenge.lasting());
    }

    /// A living token that was asked of this server for at least this access.
    fn token(&self, bearer: &Bearer, access: &Access) -> Option<HeaderValue> {
        let (origin, now) = (endpoint::origin(&access.home), Instant::now());
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |token: &&Token| {
            (&token.origin, &token.realm, &token.service) == (&origin, &bearer.realm, &bearer.service)
                && access.scopes().iter().all(|wanted| token.scopes.iter().any(|held| covers(held, wanted)))
                && now < token.until
        };
        tokens.iter().rev().find(fits).map(|token| token.value.clone())
    }

    /// Whether the token in `value` is past its life.
    pub(super) fn has_expired(&self, value: &HeaderValue) -> bool {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.iter().any(|token| token.value == value && token.until <= Instant::now())
    }

    fn keep(&self, token: Token) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |old: &Token| {
            (&old.origin, &old.realm, &old.service, &old.scopes)
                == (&token.origin, &token.realm, &token.service, &token.scopes)
        };
        tokens.retain(|old| !same(old));
        tokens.push(token);
    }
}

impl Transport {
    /// What a request should carry at once, by what its registry asked for before; none where it never asked.
    pub(super) async fn authorization(&self, access: &Access) -> Result<Option<HeaderValue>, Failure> {
        match self.authority.challenge(&endpoint::origin(&access.home)) {
            None => Ok(None),
            Some(challenge) => self.satisfy(&challenge, access, None).await.map(Some),
        }
    }

    /// What a request must carry instead of `refused`, by the answer that refused it.
    pub(super) async fn reauthorization(
        &self,
        answer: &Answer,
        access: &Access,
        refused: Option<&HeaderValue>,
    ) -> Result<HeaderValue, Failure> {
        let origin = endpoint::origin(&access.home);
        let challenge = match (Challenge::of(answer.headers()), self.authority.challenge(&origin)) {
            (Ok(challenge), _) | (Err(_), Some(challenge)) => challenge,
            (Err(found), None) => return Err(unauthorized(answer.request(), &found).into()),
        };
        self.authority.remember(origin, &challenge);
        self.satisfy(&challenge, access, refused).await
    }

    async fn satisfy(
        &self,
        challenge: &Challenge,
        access: &Access,
        refused: Option<&HeaderValue>,
    ) -> Result<HeaderValue, Failure> {
        let home = format!("authorize at {}", endpoint::origin(&access.home));
        match challenge {
            Challenge::Basic => match self.authority.credentials.of(&access.home)? {
                Some(Identity::Password { user, password }) => {
                    let value = basic(&user, &password);
                    // The same again would be refused again.
                    if refused.is_some_and(|refused| *refused == value) {
                        return Err(unauthorized(&home, "found that it refuses our name and password").into());
                    }
                    Ok(value)
                }
                _ => {
                    Err(unauthorized(&home, "found that it wants a name and password, and we have none for it").into())
                }
            },
            Challenge::Bearer(bearer) => {
                let _asking = self.authority.asking.lock().await;
                match self.authority.token(bearer, access).filter(|found| Some(found) != refused) {
                    Some(found) => Ok(found),
                    None => self.ask_token(bearer, access).await,
                }
            }
        }
    }

    async fn ask_token(&self, bearer: &Bearer, access: &Access) -> Result<HeaderValue, Failure> {
        let registry = endpoint::origin(&access.home);
        let protocol = |problem| Error::Protocol { request: format!("authorize at {registry}"), problem };
        bearer.check(&access.home).map_err(protocol)?;
        self.endpoints.check(&bearer.realm)?;
        let identity = self.authority.credentials.of(&access.home)?;
        if identity.is_some() && !bearer.is_trusted(&access.home, &self.authority.realms) {
            return Err(Error::Realm { registry, realm: endpoint::origin(&bearer.realm) }.into());
        }
        let scopes = bearer.scopes(access);
        let client = self.clients.of_realm(&bearer.realm, &access.home, &self.options)?;
        let called = self.call_token_server(client, bearer, &scopes, identity.as_ref()).await;
        let mut answer = called.map_err(|failure| match failure {
            // The registry itself was reached.
            Failure::Final(Error::Unreachable { endpoint, reason }) => {
                Error::TokenServer { registry: registry.clone(), realm: endpoint, reason }.into()
            }
            other => other,
        })?;
        let bytes = answer.whole(TOKEN_BYTES_MAX).await?;
        let (value, life) = parse(&bytes)
            .ok_or_else(|| answer.protocol("expected a token, found none that fits a header".to_owned()))?;
        self.authority.keep(Token {
            origin: registry,
            realm: bearer.realm.clone(),
            service: bearer.service.clone(),
            // What we wanted: a registry that asks for it in other words means the same.
            scopes: access.scopes().to_vec(),
            value: value.clone(),
            until: Instant::now() + life,
        });
        Ok(value)
    }

    /// GET with the password, where there is one, or POST with the identity token. A redirect is a refusal: a token server
    /// has no reason to send us elsewhere.
    async fn call_token_server(
        &self,
        client: &reqwest::Client,
        bearer: &Bearer,
        scopes: &[String],
        identity: Option<&Identity>,
    ) -> Result<Answer, Failure> {
        let mut url = bearer.realm.clone();
        let builder = if let Some(Identity::Token(token)) = identity {
            let mut form = Url::parse("form:").expect("a constant");
            form.query_pairs_mut()
                .append_pair("grant_type", "refresh_token")
                .append_pair("service", bearer.service.as_deref().unwrap_or_default())
                .append_pair("client_id", &self.options.user_agent)
                .append_pair("scope", &scopes.join(" "))
                .append_pair("refresh_token", token);
            let builder = client.request(Method::POST, url.clone());
            builder
                .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(form.query().unwrap_or_default().to_owned())
        } else {
            if let Some(service) = &bearer.service {
                url.query_pairs_mut().append_pair("service", service);
            }
            for scope in scopes {
                url.query_pairs_mut().append_pair("scope", scope);
            }
            client.request(Method::GET, url.clone())
        };
        let builder = match identity {
            Some(Identity::Password { user, password }) => builder.header(AUTHORIZATION, basic(user, password)),
            _ => builder,
        };
        let verb = if matches!(identity, Some(Identity::Token(_))) { "POST" } else { "GET" };
        let answer = self.deliver(builder, format!("{verb} {url}"), &url).await?;
        if answer.status() == 200 { Ok(answer) } else { Err(answer.refusal(&[200]).await) }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token for {:?}", self.scopes)
    }
}

fn unauthorized(request: &str, found: &str) -> Error {
    Error::Unauthorized {
        request: request.to_owned(),
        answer: format!("expected a challenge that we can answer, {found}"),
    }
}

/// RFC 7617, section 2.
fn basic(user: &str, password: &str) -> HeaderValue {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    sensitive(&format!("Basic {encoded}")).expect("base64 is ASCII")
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// `token`, or `access_token`, of a token server's JSON answer as a header, and how long it lives.
fn parse(answer: &[u8]) -> Option<(HeaderValue, Duration)> {
    let answer = json::parse(answer).ok()?;
    let text = |key: &str| answer[key].as_str().filter(|text| !text.is_empty());
    let token = text("token").or(text("access_token"))?;
    // It goes into a header: visible ASCII only.
    let fits = token.bytes().all(|byte| byte.is_ascii_graphic());
    let value = if fits { sensitive(&format!("Bearer {token}")) } else { None };
    let life = answer["expires_in"].as_u64().map_or(TOKEN_LIFE, Duration::from_secs);
    Some((value?, life.min(TOKEN_LIFE_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_header_text_and_have_a_life() {
        for (answer, found) in [
            (r#"{"token":"a.b-c"}"#, Some(("Bearer a.b-c", 60))),
            (r#"{"access_token":"x","expires_in":300}"#, Some(("Bearer x", 300))),
            (r#"{"token":"","access_token":"x","expires_in":9999999999999}"#, Some(("Bearer x", 86400))),
            (r#"{"token":"x","expires_in":-1}"#, Some(("Bearer x", 60))),
            (r#"{"token":""}"#, None),
            (r#"{"token":"a\r\nb"}"#, None),
            (r#"{"token":1}"#, None),
            ("<html>", None),
        ] {
            let parsed = parse(answer.as_bytes());
            let parsed = parsed.as_ref().map(|(value, life)| (value.to_str().unwrap(), life.as_secs()));
            assert_eq!(parsed, found, "{answer}");
        }
    }
}
