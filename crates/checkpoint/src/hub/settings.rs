//! Where models come from and go to, as the environment variables of the hub's own tools say.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::HubError;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// How long a connection may take, or be silent.
const SILENCE: Duration = Duration::from_secs(30);
/// Largest accepted file with a token, in bytes.
const MAX_TOKEN_FILE_BYTES: u64 = 4096;

/// Where models come from and go to.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// Address of the hub, without a slash at the end.
    pub endpoint: String,
    /// Folder of all downloaded models.
    pub cache: PathBuf,
    /// What proves who asks, for models that are not open to everybody.
    pub token: Option<Token>,
    /// Whether nothing may be fetched: only what is in the cache is used.
    pub offline: bool,
    /// Whether the environment's proxies are used (`HTTPS_PROXY`, `NO_PROXY` and so on).
    pub use_proxy: bool,
    /// How long a connection may take, or be silent, before it counts as broken.
    pub silence: Duration,
}

/// A secret, and where it came from.
#[derive(Clone)]
pub struct Token {
    secret: String,
    source: String,
}

impl HubSettings {
    /// What the environment says: `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_ENDPOINT`,
    /// `HF_HUB_OFFLINE`, and the older names of some.
    ///
    /// # Errors
    /// [`HubError::Environment`] for a value that cannot be used, and for a token file that cannot be read.
    pub fn from_env() -> Result<HubSettings, HubError> {
        HubSettings::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<HubSettings, HubError> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = home(&get)?;
        let expand = |path: OsString| expanded(&get, Path::new(&path));
        let cache = get("HF_HUB_CACHE").or_else(|| get("HUGGINGFACE_HUB_CACHE"));
        let token_file = get("HF_TOKEN_PATH").map_or_else(|| home.join("token"), expand);
        Ok(HubSettings {
            endpoint: endpoint(get("HF_ENDPOINT"))?,
            cache: cache.map_or_else(|| home.join("hub"), expand),
            token: token(&get, &token_file)?,
            offline: get("HF_HUB_OFFLINE").or_else(|| get("TRANSFORMERS_OFFLINE")).is_some_and(is_true),
            use_proxy: true,
            silence: SILENCE,
        })
    }
}

impl Token {
    /// A token that came from `source`, a name for messages.
    ///
    /// # Errors
    /// [`HubError::Environment`] when it cannot be sent.
    fn new(variable: &'static str, source: String, text: &str) -> Result<Option<Token>, HubError> {
        let secret = text.trim();
        if secret.is_empty() {
            return Ok(None);
        }
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = format!("the token of {source} has characters that no token has");
            return Err(HubError::Environment { variable, problem });
        }
        Ok(Some(Token { secret: secret.to_owned(), source }))
    }

    /// The token that a file holds, `None` when there is no such file.
    pub(super) fn read(file: &Path) -> Result<Option<Token>, HubError> {
        let io = |error: Error| {
            let problem = format!("the token file {} cannot be read: {error}", file.display());
            HubError::Environment { variable: "HF_TOKEN_PATH", problem }
        };
        let text = match fs::metadata(file) {
            Ok(metadata) if metadata.is_file() && metadata.len() <= MAX_TOKEN_FILE_BYTES => {
                fs::read_to_string(file).map_err(io)?
            }
            Ok(_) => return Err(io(Error::new(ErrorKind::InvalidData, "it is no file with a token"))),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(io(error)),
        };
        Token::new("HF_TOKEN_PATH", file.display().to_string(), &text)
    }

    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The folder with the cache and the token.
fn home(get: &impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, HubError> {
    if let Some(path) = get("HF_HOME") {
        return Ok(expanded(get, Path::new(&path)));
    }
    if let Some(path) = get("XDG_CACHE_HOME") {
        return Ok(expanded(get, Path::new(&path)).join("huggingface"));
    }
    match get("HOME").or_else(|| get("USERPROFILE")) {
        Some(path) => Ok(PathBuf::from(path).join(".cache/huggingface")),
        None => Err(HubError::Environment {
            variable: "HF_HOME",
            problem: "is not set, and neither is HOME; set it to the folder for downloaded models".to_owned(),
        }),
    }
}

/// The path with `~` at its beginning replaced.
fn expanded(get: &impl Fn(&str) -> Option<OsString>, path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), get("HOME")) {
        (Ok(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => path.to_path_buf(),
    }
}

fn endpoint(value: Option<OsString>) -> Result<String, HubError> {
    let Some(value) = value else { return Ok(DEFAULT_ENDPOINT.to_owned()) };
    let text = value.to_string_lossy();
    let text = text.trim_end_matches('/');
    if !(text.starts_with("https://") || text.starts_with("http://")) {
        let problem = format!("`{text}` is not an address; expected https://host or http://host");
        return Err(HubError::Environment { variable: "HF_ENDPOINT", problem });
    }
    Ok(text.to_owned())
}

fn token(get: &impl Fn(&str) -> Option<OsString>, file: &Path) -> Result<Option<Token>, HubError> {
    for variable in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(value) = get(variable)
            && let Some(token) = Token::new(variable, variable.to_owned(), &value.to_string_lossy())?
        {
            return Ok(Some(token));
        }
    }
    Token::read(file)
}

fn is_true(value: OsString) -> bool {
    let value = value.to_string_lossy().to_uppercase();
    ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<HubSettings, HubError> {
        HubSettings::from_variables(|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn folders_are_those_of_the_hubs_own_tools() {
        let cases: [(&[(&str, &str)], &str); 7] = [
            (&[("HOME", "/h")], "/h/.cache/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/y")], "/y/hub"),
            (&[("HOME", "/h"), ("HF_HOME", "~/y")], "/h/y/hub"),
            (&[("HOME", "/h"), ("HF_HOME", "/y"), ("HF_HUB_CACHE", "/z")], "/z"),
            (&[("HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "~/z")], "/h/z"),
            (&[("HOME", "/h"), ("HF_HOME", "")], "/h/.cache/huggingface/hub"),
        ];
        for (variables, expected) in cases {
            assert_eq!(settings(variables).unwrap().cache, Path::new(expected), "{variables:?}");
        }
        let error = settings(&[]).unwrap_err();
        assert!(error.to_string().contains("HF_HOME: is not set, and neither is HOME"), "{error}");
    }

    #[test]
    fn a_variable_wins_over_the_token_file() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        assert!(settings(&[("HF_HOME", home)]).unwrap().token.is_none());
        fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let secret = |variables: &[(&str, &str)]| {
            let token = settings(variables).unwrap().token.unwrap();
            (token.secret().to_owned(), token.source().to_owned())
        };
        let file = dir.path().join("token").display().to_string();
        assert_eq!(secret(&[("HF_HOME", home)]), ("hf_file".to_owned(), file.clone()));
        assert_eq!(secret(&[("HF_HOME", "/y"), ("HF_TOKEN_PATH", &file)]).0, "hf_file");
        let given = secret(&[("HF_HOME", home), ("HF_TOKEN", " hf_given \n")]);
        assert_eq!(given, ("hf_given".to_owned(), "HF_TOKEN".to_owned()));
        assert_eq!(secret(&[("HF_HOME", home), ("HUGGING_FACE_HUB_TOKEN", "hf_old")]).0, "hf_old");
    }

    #[test]
    fn a_token_is_not_shown() {
        let settings = settings(&[("HF_HOME", "/y"), ("HF_TOKEN", "hf_secret")]).unwrap();
        assert!(!format!("{settings:?}").contains("hf_secret"));
        let error = super::tests::settings(&[("HF_HOME", "/y"), ("HF_TOKEN", "hf_s\u{7}")]).unwrap_err();
        assert!(!error.to_string().contains("hf_s"), "{error}");
    }

    #[test]
    fn unusable_values_name_their_variable() {
        let error = settings(&[("HF_HOME", "/y"), ("HF_ENDPOINT", "hub.example")]).unwrap_err();
        assert!(matches!(error, HubError::Environment { variable: "HF_ENDPOINT", .. }), "{error}");
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("token")).unwrap();
        let error = settings(&[("HF_HOME", dir.path().to_str().unwrap())]).unwrap_err();
        assert!(error.to_string().contains("it is no file with a token"), "{error}");
    }

    #[test]
    fn endpoint_and_offline() {
        assert_eq!(settings(&[("HOME", "/h")]).unwrap().endpoint, "https://huggingface.co");
        let mirror = settings(&[("HOME", "/h"), ("HF_ENDPOINT", "http://m:1/x/")]).unwrap();
        assert_eq!(mirror.endpoint, "http://m:1/x");
        for (value, expected) in
            [("1", true), ("on", true), ("Yes", true), ("TRUE", true), ("0", false), ("", false)]
        {
            assert_eq!(
                settings(&[("HOME", "/h"), ("HF_HUB_OFFLINE", value)]).unwrap().offline,
                expected,
                "{value}"
            );
        }
        assert!(settings(&[("HOME", "/h"), ("TRANSFORMERS_OFFLINE", "1")]).unwrap().offline);
    }
}
