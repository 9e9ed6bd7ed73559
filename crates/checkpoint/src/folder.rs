//! A model folder: which files it has, and what is in them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::shards::open_weights;
use crate::template::MAX_TEMPLATE_BYTES;
use crate::tokenizer_config::TokenizerConfig;
use crate::{ChatTemplate, Error, FileBytes, GenerationConfig, RawConfig, Tensors, Tokenizer};

/// Largest accepted config file, in bytes. Published ones have less than 100 kB.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
/// Largest accepted tokenizer, in bytes. The largest published ones have about 35 MB.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// A checkpoint: a folder on disk, or the same files embedded in the program.
///
/// Opening reads the config only; weights and texts are opened when they are asked for.
#[derive(Debug)]
pub struct ModelFolder {
    /// Path of the folder, or the name of the embedded model.
    origin: PathBuf,
    files: Files,
    config: RawConfig,
    /// Seed of made-up weights, which stand in the place of those of the folder.
    random_weights: Option<u64>,
}

#[derive(Debug)]
enum Files {
    Disk,
    Memory(BTreeMap<String, Arc<FileBytes>>),
}

impl ModelFolder {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// [`Error::NoFolder`], [`Error::NotAFolder`], [`Error::Gguf`], [`Error::MissingFile`] without `config.json`, [`Error::Io`],
    /// [`Error::FileTooLarge`], [`Error::Json`].
    pub fn open(path: &Path) -> Result<ModelFolder, Error> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                ModelFolder::new(path.to_path_buf(), Files::Disk).map_err(|error| match error {
                    Error::MissingFile { folder, file } => match gguf_in(&folder) {
                        Some(file) => Error::Gguf { file },
                        None => Error::MissingFile { folder, file },
                    },
                    other => other,
                })
            }
            Ok(_) if is_gguf(path) => Err(Error::Gguf { file: path.to_path_buf() }),
            Ok(_) => Err(Error::NotAFolder { path: path.to_path_buf() }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Error::NoFolder { path: path.to_path_buf() })
            }
            Err(source) => Err(Error::Io { path: path.to_path_buf(), source }),
        }
    }

    /// A folder made of files in memory; `name` stands for its path in messages.
    ///
    /// # Errors
    /// [`Error::MissingFile`] without `config.json`, [`Error::Json`].
    pub fn from_files<N, B>(name: &str, files: impl IntoIterator<Item = (N, B)>) -> Result<ModelFolder, Error>
    where
        N: Into<String>,
        B: Into<Cow<'static, [u8]>>,
    {
        let files = files.into_iter().map(|(n, b)| (n.into(), Arc::new(FileBytes::from(b.into())))).collect();
        ModelFolder::new(PathBuf::from(name), Files::Memory(files))
    }

    fn new(origin: PathBuf, files: Files) -> Result<ModelFolder, Error> {
        let config = read_config(&origin, &files, CONFIG)?
            .ok_or_else(|| Error::MissingFile { folder: origin.clone(), file: CONFIG })?;
        Ok(ModelFolder { origin, files, config, random_weights: None })
    }

    /// The same folder with made-up weights ([`Tensors::random`]) in the place of its own, which need not be there.
    #[must_use]
    pub fn with_random_weights(self, seed: u64) -> ModelFolder {
        ModelFolder { random_weights: Some(seed), ..self }
    }

    /// Path of the folder, or the name of the embedded model.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// The parsed `config.json`.
    pub fn config(&self) -> &RawConfig {
        &self.config
    }

    /// The bytes of `config.json`.
    ///
    /// # Errors
    /// [`Error::MissingFile`] when it has gone since, [`Error::Io`], [`Error::FileTooLarge`].
    pub fn config_bytes(&self) -> Result<Cow<'_, [u8]>, Error> {
        self.read(CONFIG, MAX_CONFIG_BYTES)?
            .ok_or_else(|| Error::MissingFile { folder: self.origin.clone(), file: CONFIG })
    }

    /// How to generate from the checkpoint, from `generation_config.json` and what the config says otherwise.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::FileTooLarge`], [`Error::Json`], [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn generation(&self) -> Result<GenerationConfig, Error> {
        let generation = read_config(&self.origin, &self.files, "generation_config.json")?;
        GenerationConfig::read(&self.config, generation.as_ref())
    }

    /// All tensors of the folder under their stored names. Headers are read and checked, weights are not read.
    ///
    /// # Errors
    /// [`Error::MissingWeights`]; everything that can be wrong with an index and with headers.
    pub fn tensors(&self) -> Result<Tensors, Error> {
        match self.random_weights {
            Some(seed) => Ok(Tensors::random(&self.origin.join(CONFIG), seed)),
            None => open_weights(self),
        }
    }

    /// The tokenizer of the folder; `None` when it has no `tokenizer.json`, as drafters may.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]; what can be wrong with `tokenizer_config.json` and `generation_config.json`.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, Error> {
        let Some(bytes) = self.read(TOKENIZER, MAX_TOKENIZER_BYTES)? else { return Ok(None) };
        let settings = self.tokenizer_config()?;
        let bos_token_id = self.generation()?.bos_token_id;
        Tokenizer::parse(&self.origin.join(TOKENIZER), &bytes, &settings, bos_token_id).map(Some)
    }

    /// The chat template of the folder, from `chat_template.jinja` or else `tokenizer_config.json`; `None` when it has
    /// none, as base models do.
    ///
    /// # Errors
    /// [`Error::Template`]; what can be wrong with `tokenizer_config.json`.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, Error> {
        let settings = self.tokenizer_config()?;
        if let Some(bytes) = self.read(TEMPLATE, MAX_TEMPLATE_BYTES)? {
            let file = self.origin.join(TEMPLATE);
            let Ok(source) = str::from_utf8(&bytes) else {
                return Err(Error::Template { file, message: "it is not UTF-8 text".to_owned() });
            };
            return ChatTemplate::parse(&file, source, &settings.special_tokens).map(Some);
        }
        if settings.chat_templates.is_empty() {
            return Ok(None);
        }
        let file = self.origin.join(TOKENIZER_CONFIG);
        ChatTemplate::parse_named(&file, &settings.chat_templates, &settings.special_tokens).map(Some)
    }

    fn tokenizer_config(&self) -> Result<TokenizerConfig, Error> {
        let raw = read_config(&self.origin, &self.files, TOKENIZER_CONFIG)?;
        raw.map(|raw| TokenizerConfig::read(&raw)).transpose().map(Option::unwrap_or_default)
    }

    /// The bytes of one file of the folder, mapped when it is on disk; `None` when there is no such file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn bytes(&self, name: &str) -> Result<Option<Arc<FileBytes>>, Error> {
        match &self.files {
            Files::Memory(files) => Ok(files.get(name).cloned()),
            Files::Disk => {
                let path = self.origin.join(name);
                match file_metadata(&path)? {
                    Some(_) => FileBytes::map(&path).map(|bytes| Some(Arc::new(bytes))),
                    None => Ok(None),
                }
            }
        }
    }

    /// The bytes of one file of the folder read into memory, of at most `limit` bytes; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::FileTooLarge`].
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<Cow<'_, [u8]>>, Error> {
        read_limited(&self.origin, &self.files, name, limit)
    }
}

fn is_gguf(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// The first GGUF file of a folder, if it has one.
fn gguf_in(folder: &Path) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).filter(|path| is_gguf(path)).min()
}

fn read_config(origin: &Path, files: &Files, name: &str) -> Result<Option<RawConfig>, Error> {
    let bytes = read_limited(origin, files, name, MAX_CONFIG_BYTES)?;
    bytes.map(|bytes| RawConfig::parse(&origin.join(name), &bytes)).transpose()
}

fn read_limited<'a>(
    origin: &Path,
    files: &'a Files,
    name: &str,
    limit: u64,
) -> Result<Option<Cow<'a, [u8]>>, Error> {
    let file = origin.join(name);
    let check = |size: u64| {
        if size > limit { Err(Error::FileTooLarge { file: file.clone(), size, limit }) } else { Ok(()) }
    };
    match files {
        Files::Memory(files) => {
            let Some(bytes) = files.get(name) else { return Ok(None) };
            check(bytes.len() as u64)?;
            Ok(Some(Cow::Borrowed(&bytes[..])))
        }
        Files::Disk => {
            let Some(metadata) = file_metadata(&file)? else { return Ok(None) };
            check(metadata.len())?;
            let io = |source| Error::Io { path: file.clone(), source };
            let mut bytes = Vec::new();
            // The file may have grown since its size was taken.
            File::open(&file).map_err(io)?.take(limit + 1).read_to_end(&mut bytes).map_err(io)?;
            check(bytes.len() as u64)?;
            Ok(Some(Cow::Owned(bytes)))
        }
    }
}

/// Metadata of a regular file, `None` when there is nothing of that name. Anything else than a regular file is an
/// error, since opening a pipe could wait for ever.
fn file_metadata(path: &Path) -> Result<Option<Metadata>, Error> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata)),
        Ok(_) => Err(io(std::io::Error::new(ErrorKind::InvalidInput, "not a regular file"))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io(error)),
    }
}

#[cfg(test)]
mod tests;
