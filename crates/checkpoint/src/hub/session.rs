//! Requests about one model: redirects, statuses and what the headers say.

use std::time::Duration;

use serde::Deserialize;
use ureq::http::header::{AUTHORIZATION, CONTENT_LENGTH, ETAG, LOCATION, RETRY_AFTER};
use ureq::http::{HeaderName, Method, Uri};

use super::client::{Answer, Client};
use super::id::is_commit;
use super::{HubError, HubId, HubSettings};

/// Redirects that are followed for one request.
const MAX_REDIRECTS: usize = 10;
/// Largest accepted list of files, in bytes.
const MAX_LISTING_BYTES: u64 = 64 << 20;
/// Longest accepted etag, in bytes: it becomes the name of a file.
const MAX_ETAG_BYTES: usize = 128;

const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
const ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-error-message");

/// What may be asked of the hub about one model.
#[derive(Debug)]
pub(super) struct Session<'a> {
    client: Client,
    settings: &'a HubSettings,
    id: &'a HubId,
    endpoint: Uri,
}

/// The files of one commit.
#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    /// The commit that the revision stands for.
    #[serde(rename = "sha")]
    pub(super) commit: String,
    siblings: Vec<ListedFile>,
}

#[derive(Debug, Deserialize)]
struct ListedFile {
    rfilename: String,
    size: Option<u64>,
}

/// What the hub says about a file of a commit.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    /// Plain file name.
    pub(super) name: String,
    /// The name of the contents, which is the name of the file's blob in the cache.
    pub(super) etag: String,
    /// Bytes of the whole file.
    pub(super) size: u64,
    /// Where the contents are fetched from.
    url: Uri,
}

impl RemoteFile {
    /// The hash that the contents must have, in hexadecimal; `None` for small files, whose etag is a hash of git.
    pub(super) fn sha256(&self) -> Option<&str> {
        (self.etag.len() == 64 && self.etag.bytes().all(|b| b.is_ascii_hexdigit())).then_some(&self.etag)
    }
}

impl Listing {
    /// Whether the commit has a file of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.siblings.iter().any(|file| file.rfilename == name)
    }

    /// Size of a file in bytes, where the hub says it.
    pub(super) fn size(&self, name: &str) -> Option<u64> {
        self.siblings.iter().find(|file| file.rfilename == name)?.size
    }

    /// Names of all files.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.siblings.iter().map(|file| file.rfilename.as_str())
    }
}

impl<'a> Session<'a> {
    pub(super) fn new(settings: &'a HubSettings, id: &'a HubId) -> Result<Session<'a>, HubError> {
        let endpoint = settings.endpoint.parse::<Uri>().ok().filter(|url| url.host().is_some());
        let Some(endpoint) = endpoint else {
            let problem = format!("`{}` is not an address", settings.endpoint);
            return Err(HubError::Environment { variable: "HF_ENDPOINT", problem });
        };
        Ok(Session { client: Client::new(settings), settings, id, endpoint })
    }

    /// The files of the model's revision.
    pub(super) fn listing(&self) -> Result<Listing, HubError> {
        let revision = self.id.revision().replace('/', "%2F").replace('+', "%2B");
        let url = self.url(&format!("api/models/{}/revision/{revision}?blobs=true", self.id.name()))?;
        let (url, mut answer) = self.follow(&Method::GET, url, &[], |_| false)?;
        self.check_status(&url, &answer, &format!("revision `{}`", self.id.revision()))?;
        let bad = |problem: String| HubError::BadAnswer { url: url.to_string(), problem };
        let body =
            answer.body_mut().with_config().limit(MAX_LISTING_BYTES).read_to_vec().map_err(|error| {
                match error {
                    ureq::Error::Io(_) | ureq::Error::Timeout(_) => {
                        HubError::Unreachable { url: url.to_string(), message: error.to_string() }
                    }
                    error => bad(error.to_string()),
                }
            })?;
        let listing: Listing = serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
        if !is_commit(&listing.commit) {
            return Err(bad(format!("`{:.60}` is no commit", listing.commit)));
        }
        Ok(listing)
    }

    /// What the hub says about a file of a commit.
    pub(super) fn file(&self, commit: &str, name: &str) -> Result<RemoteFile, HubError> {
        let start = self.url(&format!("{}/resolve/{commit}/{name}", self.id.name()))?;
        // A redirect that names the contents leads to a store, which knows neither name nor size better.
        let named = |answer: &Answer| answer.headers().contains_key(LINKED_ETAG);
        let (url, answer) = self.follow(&Method::HEAD, start.clone(), &[], named)?;
        if !named(&answer) {
            self.check_status(&url, &answer, &format!("file `{name}`"))?;
        }
        let bad = |problem: &str| HubError::BadAnswer { url: url.to_string(), problem: problem.to_owned() };
        let etag = text(&answer, &LINKED_ETAG).or_else(|| text(&answer, &ETAG)).and_then(plain_etag);
        let etag = etag.ok_or_else(|| bad("it has no etag that could name the file's contents"))?;
        let length = if answer.status().is_success() { text(&answer, &CONTENT_LENGTH) } else { None };
        let size = text(&answer, &LINKED_SIZE).or(length).and_then(|size| size.parse().ok());
        let size = size.ok_or_else(|| bad("it does not say how long the file is"))?;
        Ok(RemoteFile { name: name.to_owned(), etag, size, url: start })
    }

    /// Asks for the contents of a file from byte `start` on. The answer's status is 200, 206 or 416.
    pub(super) fn contents(&self, file: &RemoteFile, start: u64) -> Result<Answer, HubError> {
        let range = [("range", format!("bytes={start}-"))];
        let headers = if start > 0 { &range[..] } else { &[] };
        let (url, answer) = self.follow(&Method::GET, file.url.clone(), headers, |_| false)?;
        if answer.status().as_u16() != 416 {
            self.check_status(&url, &answer, &format!("file `{}`", file.name))?;
        }
        Ok(answer)
    }

    /// `owner/name: file`, for messages.
    pub(super) fn label(&self, file: &RemoteFile) -> String {
        format!("{}: {}", self.id, file.name)
    }

    fn url(&self, path: &str) -> Result<Uri, HubError> {
        let url = format!("{}/{path}", self.settings.endpoint);
        url.parse().map_err(|error| HubError::BadAnswer { url, problem: format!("not an address: {error}") })
    }

    /// Sends a request and follows redirects until one is where it `ends`. The token goes to the hub itself only.
    fn follow(
        &self,
        method: &Method,
        start: Uri,
        headers: &[(&str, String)],
        ends: impl Fn(&Answer) -> bool,
    ) -> Result<(Uri, Answer), HubError> {
        let mut url = start.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut headers = headers.to_vec();
            if let Some(token) = &self.settings.token
                && self.is_hub(&url)
            {
                headers.push((AUTHORIZATION.as_str(), format!("Bearer {}", token.secret())));
            }
            let answer = self.client.send(method.clone(), &url, &headers)?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) || ends(&answer) {
                return Ok((url, answer));
            }
            url = redirected(&url, &answer)?;
        }
        Err(HubError::TooManyRedirects { url: start.to_string(), limit: MAX_REDIRECTS })
    }

    fn is_hub(&self, url: &Uri) -> bool {
        url.scheme() == self.endpoint.scheme() && url.authority() == self.endpoint.authority()
    }

    /// Refuses every status that is not success; `what` is missing when it is 404.
    fn check_status(&self, url: &Uri, answer: &Answer, what: &str) -> Result<(), HubError> {
        let (name, status) = (self.id.name().to_owned(), answer.status().as_u16());
        let (url_text, page) = (url.to_string(), format!("{}/{name}", self.settings.endpoint));
        Err(match status {
            200..=299 => return Ok(()),
            429 => HubError::RateLimited { url: url_text, retry_after: retry_after(answer) },
            500..=599 => HubError::Server { url: url_text, status },
            // What follows is said of the model only by the hub, not by a store that it redirects to.
            401 if self.is_hub(url) => match &self.settings.token {
                Some(token) => HubError::TokenRefused { name, source_of_token: token.source().to_owned() },
                None => HubError::TokenNeeded { name, page },
            },
            403 if self.is_hub(url) => {
                HubError::NoAccess { name, page, with_token: self.settings.token.is_some() }
            }
            404 if self.is_hub(url) => match text(answer, &ERROR_CODE).as_deref() {
                Some("RepoNotFound") => HubError::NotFound { name, what: "model of this name".to_owned() },
                _ => HubError::NotFound { name, what: what.to_owned() },
            },
            _ => HubError::Status { url: url_text, status, message: text(answer, &ERROR_MESSAGE) },
        })
    }
}

fn text(answer: &Answer, name: &HeaderName) -> Option<String> {
    answer.headers().get(name)?.to_str().ok().map(str::to_owned)
}

fn retry_after(answer: &Answer) -> Option<Duration> {
    text(answer, &RETRY_AFTER)?.trim().parse().ok().map(Duration::from_secs)
}

/// The etag without quotes and the mark of weakness, if it can be the name of a file.
fn plain_etag(etag: String) -> Option<String> {
    let etag = etag.trim().trim_start_matches("W/").trim_matches('"');
    let plain = !etag.is_empty()
        && etag.len() <= MAX_ETAG_BYTES
        && !etag.starts_with('.')
        && etag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    plain.then(|| etag.to_owned())
}

/// Where a redirect leads.
fn redirected(from: &Uri, answer: &Answer) -> Result<Uri, HubError> {
    let Some(location) = text(answer, &LOCATION) else {
        let problem = format!("it has status {} and no Location", answer.status().as_u16());
        return Err(HubError::BadAnswer { url: from.to_string(), problem });
    };
    let bad = |problem| HubError::BadRedirect { url: from.to_string(), location: location.clone(), problem };
    let scheme = from.scheme_str().unwrap_or_default();
    let host = from.authority().map_or("", |authority| authority.as_str());
    let absolute = match location.as_str() {
        text if text.starts_with("//") => format!("{scheme}:{text}"),
        text if text.starts_with('/') => format!("{scheme}://{host}{text}"),
        text => text.to_owned(),
    };
    let url: Uri = absolute.parse().map_err(|_| bad("is not an address"))?;
    match (from.scheme_str(), url.scheme_str()) {
        (Some("https"), Some("http")) => Err(bad("would give up encryption")),
        (_, Some("http" | "https")) if url.host().is_some() => Ok(url),
        _ => Err(bad("is not an address")),
    }
}

#[cfg(test)]
mod tests {
    use ureq::Body;
    use ureq::http::Response;

    use super::*;

    fn redirect(from: &str, location: &str) -> Result<String, HubError> {
        let body = Body::builder().data(Vec::new());
        let answer = Response::builder().status(302).header(LOCATION, location).body(body).unwrap();
        redirected(&from.parse().unwrap(), &answer).map(|url| url.to_string())
    }

    #[test]
    fn redirects_lead_to_addresses() {
        let from = "https://hub.example:81/a/b";
        for (location, to) in [
            ("/c?d=e", "https://hub.example:81/c?d=e"),
            ("//store.example/c", "https://store.example/c"),
            ("https://store.example/c", "https://store.example/c"),
        ] {
            assert_eq!(redirect(from, location).unwrap(), to);
        }
        assert_eq!(redirect("http://hub.example/", "https://hub.example/").unwrap(), "https://hub.example/");
    }

    #[test]
    fn encryption_is_not_given_up() {
        let error = redirect("https://hub.example/a", "http://hub.example/a").unwrap_err();
        assert!(error.to_string().contains("would give up encryption"), "{error}");
    }

    #[test]
    fn etags_become_names_of_files() {
        let plain = |etag: &str| plain_etag(etag.to_owned());
        assert_eq!(plain("\"abc\"").as_deref(), Some("abc"));
        assert_eq!(plain("W/\"abc-1\"").as_deref(), Some("abc-1"));
        let long = "a".repeat(MAX_ETAG_BYTES + 1);
        for etag in ["", "\"\"", "\"../x\"", ".x", "a/b", "a b", &long] {
            assert_eq!(plain(etag), None, "{etag:?}");
        }
    }
}
