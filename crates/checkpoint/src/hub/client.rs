//! The HTTP client and its TLS, and nothing else: what is to be replaced when either changes.
//!
//! TLS is rustls over graviola, which needs no C compiler but instructions that not every processor has.

use std::io::ErrorKind;
use std::sync::Arc;

use ureq::config::Config;
use ureq::http::{Method, Request, Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Body, Proxy};

use super::{HubError, HubSettings};

/// One answer, of any status.
pub(super) type Answer = Response<Body>;

/// Sends one request at a time and follows nothing.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
}

impl Client {
    pub(super) fn new(settings: &HubSettings) -> Client {
        let mut config = Agent::config_builder()
            .user_agent(concat!("paceline/", env!("CARGO_PKG_VERSION")))
            // A body that is packed on the way has another length, and cannot be resumed.
            .accept_encoding("identity")
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(settings.silence))
            .timeout_per_read(Some(settings.silence))
            .timeout_per_write(Some(settings.silence))
            .proxy(if settings.use_proxy { Proxy::try_from_env() } else { None });
        if missing_instructions().is_none() {
            let tls = TlsConfig::builder()
                .root_certs(root_certs())
                .unversioned_rustls_crypto_provider(Arc::new(rustls_graviola::default_provider()));
            config = config.tls_config(tls.build());
        }
        let (connector, resolver) = (DefaultConnector::default(), SayingLookups(DefaultResolver::default()));
        Client { agent: Agent::with_parts(config.build(), connector, resolver) }
    }

    /// Sends a request without a body.
    ///
    /// # Errors
    /// [`HubError::NoTls`], [`HubError::Tls`], [`HubError::NoAddress`], [`HubError::Unreachable`], [`HubError::BadAnswer`].
    pub(super) fn send(
        &self,
        method: Method,
        url: &Uri,
        headers: &[(&str, String)],
    ) -> Result<Answer, HubError> {
        if url.scheme_str() == Some("https")
            && let Some(needed) = missing_instructions()
        {
            return Err(HubError::NoTls { url: url.to_string(), needed });
        }
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let bad = |problem: String| HubError::BadAnswer { url: url.to_string(), problem };
        let request = request.body(()).map_err(|error| bad(error.to_string()))?;
        self.agent.run(request).map_err(|error| failure(url, error))
    }
}

/// Finds addresses of names, and marks the failures of that, which otherwise look like those of a connection.
#[derive(Debug)]
struct SayingLookups(DefaultResolver);

/// The name of a host has no address, as far as can be found out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoAddress(String);

impl Resolver for SayingLookups {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let no_address = |message| std::io::Error::new(ErrorKind::NotFound, NoAddress(message)).into();
        self.0.resolve(uri, config, timeout).map_err(|error| match error {
            ureq::Error::Io(error) => no_address(error.to_string()),
            ureq::Error::HostNotFound => no_address(error.to_string()),
            other => other,
        })
    }
}

/// What went wrong between here and the other side.
fn failure(url: &Uri, error: ureq::Error) -> HubError {
    let (url, message) = (url.to_string(), error.to_string());
    match error {
        ureq::Error::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<NoAddress>()) => {
            HubError::NoAddress { url, message: error.to_string() }
        }
        // rustls hides its own errors in those of the socket.
        ureq::Error::Io(error) if error.kind() == ErrorKind::InvalidData => HubError::Tls { url, message },
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::ConnectionFailed
        | ureq::Error::ConnectProxyFailed(_) => HubError::Unreachable { url, message },
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => HubError::Tls { url, message },
        _ => HubError::BadAnswer { url, problem: message },
    }
}

/// The certificates that the system trusts, or those of Mozilla where it has none.
fn root_certs() -> RootCerts {
    let certs = rustls_native_certs::load_native_certs().certs;
    if certs.is_empty() {
        return RootCerts::WebPki;
    }
    RootCerts::Specific(Arc::new(certs.iter().map(|cert| Certificate::from_der(cert).to_owned()).collect()))
}

/// The instructions that graviola needs, where this processor lacks one of them; it would panic.
fn missing_instructions() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let (all, needed) = (
        is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("adx")
            && is_x86_feature_detected!("avx2"),
        "AES, PCLMULQDQ, BMI1, ADX and AVX2",
    );
    #[cfg(target_arch = "aarch64")]
    let (all, needed) = (
        std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull")
            && std::arch::is_aarch64_feature_detected!("sha2"),
        "AES, PMULL and SHA2",
    );
    (!all).then_some(needed)
}
