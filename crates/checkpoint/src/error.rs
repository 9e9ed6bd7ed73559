//! Everything that can be wrong with a checkpoint.

use std::path::PathBuf;

use crate::DType;

/// What is wrong with a model folder. Every message names the file, and the tensor or field where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to read something.
    #[error("{path}: cannot be read: {source}")]
    Io {
        /// File or folder that was read.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The given model folder does not exist.
    #[error("{path}: no such folder; expected a model folder with config.json and model.safetensors")]
    NoFolder {
        /// The given path.
        path: PathBuf,
    },
    /// A file was given where a model folder is expected.
    #[error("{path}: is a file, expected the folder that holds config.json and model.safetensors")]
    NotAFolder {
        /// The given path.
        path: PathBuf,
    },
    /// A file that every model folder must have is missing.
    #[error("{folder}: has no {file}; every model folder needs one")]
    MissingFile {
        /// The model folder.
        folder: PathBuf,
        /// Name of the missing file.
        file: &'static str,
    },
    /// A model in a form that is not read.
    #[error(
        "{file}: GGUF is not read; expected the folder of the same model in safetensors form, with config.json, model.safetensors and \
         tokenizer.json"
    )]
    Gguf {
        /// The file.
        file: PathBuf,
    },
    /// The folder has no weights in a supported form.
    #[error(
        "{folder}: has no weights; expected model.safetensors, or model.safetensors.index.json with its shards"
    )]
    MissingWeights {
        /// The model folder.
        folder: PathBuf,
    },
    /// A file is larger than any honest file of its kind.
    #[error("{file}: has {size} bytes, more than the limit of {limit} for this kind of file")]
    FileTooLarge {
        /// The file.
        file: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// Largest accepted size in bytes.
        limit: u64,
    },
    /// A file is not valid JSON, or not of the expected form.
    #[error("{file}: not valid JSON for its kind: {message}")]
    Json {
        /// The file.
        file: PathBuf,
        /// What is wrong, with line and column.
        message: String,
    },
    /// A required field of a config is absent.
    #[error("{file}: field `{field}` is missing; it has no safe default, so the file must say it")]
    MissingField {
        /// The config file.
        file: PathBuf,
        /// Field with its parents, as `text_config.hidden_size`.
        field: String,
    },
    /// A field of a config has a value of the wrong type.
    #[error("{file}: field `{field}` is {found}, expected {expected}")]
    WrongType {
        /// The config file.
        file: PathBuf,
        /// Field with its parents.
        field: String,
        /// The value found, shortened.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A number of a config is outside its limits.
    #[error("{file}: field `{field}` is {found}, expected {expected}")]
    OutOfRange {
        /// The config file.
        file: PathBuf,
        /// Field with its parents.
        field: String,
        /// The value found.
        found: String,
        /// The accepted range.
        expected: String,
    },
    /// The header of a safetensors file is wrong; no tensor of the file can be trusted.
    #[error("{file}: {problem}")]
    BadHeader {
        /// The safetensors file.
        file: PathBuf,
        /// What is wrong.
        problem: HeaderProblem,
    },
    /// The index names a shard file that is not there.
    #[error("{index}: names the shard `{shard}`, which is not in the folder; is the download complete?")]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The missing file.
        shard: String,
    },
    /// The index names a shard by something else than a plain file name.
    #[error("{index}: shard name `{shard}` is not a plain file name")]
    BadShardName {
        /// The index file.
        index: PathBuf,
        /// The name found.
        shard: String,
    },
    /// The index says that a shard holds a tensor, and the shard does not.
    #[error("{index}: says that tensor `{tensor}` is in `{shard}`, but that file does not have it")]
    TensorNotInShard {
        /// The index file.
        index: PathBuf,
        /// The shard file.
        shard: String,
        /// The tensor.
        tensor: String,
    },
    /// Two shards hold a tensor of the same name.
    #[error("{second}: tensor `{tensor}` is also in {first}; a name may occur once")]
    TensorInTwoFiles {
        /// The tensor.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other file.
        second: PathBuf,
    },
    /// Two stored names mean the same tensor of the text model.
    #[error("{file}: tensors `{first}` and `{second}` both mean `{tensor}`; only one may be there")]
    AmbiguousTensor {
        /// The file of the second one.
        file: PathBuf,
        /// Name without its prefix.
        tensor: String,
        /// One stored name.
        first: String,
        /// The other stored name.
        second: String,
    },
    /// A tensor that the model needs is not in the checkpoint.
    #[error("{file}: tensor `{tensor}` is missing, expected with shape {expected:?}")]
    MissingTensor {
        /// The weights file or folder.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the config implies.
    #[error("{file}: tensor `{tensor}` has shape {found:?}, expected {expected:?}")]
    ShapeMismatch {
        /// The weights file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape that the config implies.
        expected: Vec<usize>,
    },
    /// A tensor that the model needs has a number type that the format does not know.
    #[error("{file}: tensor `{tensor}` has the unknown type `{dtype}`, expected BF16, F16 or F32")]
    UnknownDType {
        /// The weights file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Name of its type.
        dtype: String,
    },
    /// A made-up tensor would have more elements than a machine can address.
    #[error("{file}: tensor `{tensor}` would have shape {shape:?}, too large for any machine")]
    TooLarge {
        /// The config that asks for it.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A tensor's number type is not one that is supported for its use.
    #[error("{file}: tensor `{tensor}` has type {found}, expected {expected}")]
    UnsupportedDType {
        /// The weights file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type in the file.
        found: DType,
        /// Accepted types.
        expected: &'static str,
    },
    /// A weight is NaN or infinite.
    #[error("{file}: tensor `{tensor}` holds {value} at element {index}; weights must be finite")]
    NonFinite {
        /// The weights file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Flat index of the element.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A weight stored as f32 or f16 would change if held as bf16.
    #[error(
        "{file}: tensor `{tensor}` holds {value} at element {index}, which bf16 cannot hold exactly; \
         `--weights bf16` rounds such weights to use it all the same"
    )]
    NotExactInBf16 {
        /// The weights file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Flat index of the element.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A file is not a tokenizer that can be used.
    #[error("{file}: cannot be used as a tokenizer: {message}")]
    Tokenizer {
        /// The tokenizer file.
        file: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The tokenizer belongs to another model.
    #[error(
        "{file}: names {found} tokens, which cannot be those of a model with {expected}; \
         is it another model's tokenizer?"
    )]
    VocabularyMismatch {
        /// The tokenizer file.
        file: PathBuf,
        /// Tokens of the tokenizer.
        found: usize,
        /// Tokens of the model.
        expected: usize,
    },
    /// A chat template cannot be parsed, or failed over a conversation.
    #[error("{file}: chat template fails: {message}")]
    Template {
        /// The file that holds the template.
        file: PathBuf,
        /// What is wrong and where.
        message: String,
    },
    /// A chat template refused a conversation in its own words.
    #[error("{file}: chat template refuses the conversation: {message}")]
    TemplateRefused {
        /// The file that holds the template.
        file: PathBuf,
        /// What the template says.
        message: String,
    },
    /// A chat template needed more steps or memory than it may.
    #[error("{file}: chat template does not come to an end within {limit} steps for this conversation")]
    TemplateTooLong {
        /// The file that holds the template.
        file: PathBuf,
        /// Steps that it had.
        limit: u64,
    },
    /// The checkpoint holds tensors that the model does not know.
    #[error("{file}: {} tensor(s) that this architecture does not know: {}", names.len(), shortened(names))]
    UnknownTensors {
        /// The weights file or folder.
        file: PathBuf,
        /// All unknown names, sorted.
        names: Vec<String>,
    },
}

/// What is wrong with the header of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderProblem {
    /// Shorter than the eight bytes of the header's length.
    #[error("has {len} bytes, too short for a safetensors file; is the download complete?")]
    TooShort {
        /// Bytes in the file.
        len: usize,
    },
    /// The header claims more bytes than are accepted.
    #[error("header length is {len}, above the limit of {limit}; is this a safetensors file?")]
    TooLong {
        /// Claimed bytes.
        len: u64,
        /// Accepted bytes.
        limit: u64,
    },
    /// The header reaches beyond the end of the file.
    #[error("header of {header} bytes is longer than the file with {file}; is the download complete?")]
    BeyondFile {
        /// Claimed bytes of the header.
        header: u64,
        /// Bytes in the file.
        file: usize,
    },
    /// The header is not JSON of the right form.
    #[error("header is not valid: {message}")]
    Syntax {
        /// What is wrong and where.
        message: String,
    },
    /// More tensors than are accepted.
    #[error("header names more than {limit} tensors")]
    TooManyTensors {
        /// Accepted number.
        limit: usize,
    },
    /// A name occurs twice.
    #[error("header names tensor `{tensor}` twice")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
    /// Offsets are in the wrong order or reach beyond the data.
    #[error(
        "tensor `{tensor}` has offsets {begin}..{end}, outside the {len} bytes of data; is the file complete?"
    )]
    Offsets {
        /// The tensor.
        tensor: String,
        /// Its first byte.
        begin: u64,
        /// The byte after its last one.
        end: u64,
        /// Bytes of data in the file.
        len: usize,
    },
    /// Number of elements or bytes does not fit a machine word.
    #[error("tensor `{tensor}` has shape {shape:?}, too large for any machine")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// Type and shape need another number of bytes than the offsets give.
    #[error("tensor `{tensor}` of type {dtype} and shape {shape:?} has {found} bytes, expected {expected}")]
    Size {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes between its offsets.
        found: usize,
        /// Bytes that it needs.
        expected: usize,
    },
    /// Type and shape need a fraction of a byte.
    #[error("tensor `{tensor}` of type {dtype} and shape {shape:?} does not end at a whole byte")]
    PartOfByte {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap {
        /// One tensor.
        first: String,
        /// The other tensor.
        second: String,
    },
    /// Bytes that no tensor names.
    #[error("data bytes {begin}..{end} belong to no tensor")]
    Hole {
        /// First such byte, counted from the start of the data.
        begin: usize,
        /// The byte after the last one.
        end: usize,
    },
}

/// The first few names, and how many more there are.
fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}
