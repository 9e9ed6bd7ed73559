//! The toy's text as a pure function of the history.

use paceline_backend::{Isa, Sampling, TokenId};
use paceline_kernels::pool::Team;
use paceline_kernels::select::{Choice, Chooser, RowRules, Seen, TokenCounts};

/// The toy's end token.
pub const TEXT_END: TokenId = TokenId(1);

/// One layer of the toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToyLayer {
    /// Owns K/V, in a group of its own.
    Owns {
        /// Keys that a row sees, its own included; `None` sees all.
        window: Option<usize>,
    },
    /// Reads the K/V of an earlier layer that owns some, with that layer's window.
    Shares {
        /// The earlier layer.
        layer: usize,
    },
    /// Keeps a state that each row steps, and no K/V.
    Recurrent,
}

/// What the toy is. Every field but the last changes its text.
#[derive(Clone, Debug, PartialEq)]
pub struct ToyModel {
    /// Seed of all hashes.
    pub seed: u64,
    /// Entries of the vocabulary, at least 3.
    pub vocab_size: u32,
    /// The layers.
    pub layers: Vec<ToyLayer>,
    /// Indices at which the token is [`TEXT_END`]; it is chosen nowhere else.
    pub ends_at: Vec<usize>,
    /// Out of 256 contexts, in how many the next token follows from the last one alone, see [`ToyModel::habit`].
    pub habits: u8,
    /// Factor of the logits. Without it they are integers up to 2^26, of which sampling would see nothing but the largest.
    pub scale: f32,
    /// The two largest logits are one unit in the last place apart.
    pub near_ties: bool,
    /// A row with this token overflows: its K/V and logits are not finite.
    pub overflows: Option<TokenId>,
    /// After this token the logits of a drafter are not finite.
    pub drafter_overflows: Option<TokenId>,
}

impl Default for ToyModel {
    /// Full, sliding (window 80) and K/V-shared layers; a third of the text is habit; it never ends by certainty.
    fn default() -> Self {
        Self {
            seed: 1,
            vocab_size: 97,
            layers: vec![
                ToyLayer::Owns { window: None },
                ToyLayer::Owns { window: Some(80) },
                ToyLayer::Shares { layer: 0 },
                ToyLayer::Shares { layer: 1 },
            ],
            ends_at: Vec::new(),
            habits: 85,
            scale: 1.0,
            near_ties: false,
            overflows: None,
            drafter_overflows: None,
        }
    }
}

/// Mixes two words (the finaliser of splitmix64 over their combination).
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(23) ^ b.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl ToyModel {
    /// Hidden state of a row before the first layer.
    pub(crate) fn embed(&self, token: TokenId, position: usize) -> u64 {
        mix(mix(self.seed, u64::from(token.0)), position as u64)
    }

    /// Key that a layer stores for a row.
    pub(crate) fn key(&self, hidden: u64, layer: usize) -> u64 {
        mix(hidden, 1 + layer as u64)
    }

    /// Hidden state after a layer that saw `keys`, oldest first.
    pub(crate) fn attend(&self, hidden: u64, keys: impl Iterator<Item = u64>) -> u64 {
        mix(hidden, keys.fold(self.seed, mix))
    }

    /// State of a recurrent layer after a row, from the state before it (0 at the first row); and the hidden state after the
    /// layer, from the one before it and that state.
    pub(crate) fn step(&self, x: u64, h: u64) -> u64 {
        mix(x, h)
    }

    /// First index that a row at `position` sees.
    pub(crate) fn first_visible(window: Option<usize>, position: usize) -> usize {
        window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// The token that follows from the last one alone, where it does: what a drafter can know.
    pub fn habit(&self, last: TokenId) -> TokenId {
        TokenId(2 + (mix(self.seed ^ 0xA5, u64::from(last.0)) % u64::from(self.vocab_size - 2)) as u32)
    }

    /// Logits of a row.
    pub(crate) fn logits(&self, hidden: u64, token: TokenId, position: usize, out: &mut [f32]) {
        if self.overflows == Some(token) {
            out.fill(f32::NAN);
            return;
        }
        for (id, logit) in out.iter_mut().enumerate() {
            *logit = (mix(hidden, id as u64) >> 40) as f32;
        }
        if mix(hidden, u64::MAX) as u8 <= self.habits && self.habits > 0 {
            out[self.habit(token).0 as usize] = (1 << 25) as f32;
        }
        let ends = self.ends_at.contains(&(position + 1));
        out[TEXT_END.0 as usize] = if ends { (1 << 26) as f32 } else { -1.0 };
        out.iter_mut().for_each(|logit| *logit *= self.scale);
        if self.near_ties {
            let (best, second) = two_largest(out);
            out[second] = out[best].next_down();
        }
    }

    /// Logits of a drafter: the habit, but for one in eight of its hidden states.
    pub(crate) fn guess(&self, hidden: u64, token: TokenId, out: &mut [f32]) {
        out.fill(if self.drafter_overflows == Some(token) { f32::NAN } else { 0.0 });
        let wrong = u32::from(hidden.is_multiple_of(8));
        out[((self.habit(token).0 + wrong) % self.vocab_size) as usize] = 1.0;
    }

    /// Window of a layer with K/V.
    pub(crate) fn window(&self, layer: usize) -> Option<usize> {
        match self.layers[layer] {
            ToyLayer::Owns { window } => window,
            ToyLayer::Shares { layer } => self.window(layer),
            ToyLayer::Recurrent => None,
        }
    }

    /// Plain decoding: up to `n` tokens after `prompt`, the first of `end_tokens` included. Stops early at an overflow.
    pub fn decode(&self, prompt: &[TokenId], n: usize, end_tokens: &[TokenId]) -> Vec<TokenId> {
        let mut text = ToyText::new(self, prompt);
        while text.tokens().len() < prompt.len() + n {
            match text.extend(&Sampling::default(), &[]) {
                Some(token) if !end_tokens.contains(&token) => {}
                _ => break,
            }
        }
        text.tokens()[prompt.len()..].to_vec()
    }

    /// A prompt of `n` tokens that depends on `seed`, none of them the end or the overflowing token.
    pub fn prompt(&self, n: usize, seed: u64) -> Vec<TokenId> {
        let token = |i: usize| {
            let drawn = (2 + mix(mix(seed, 77), i as u64) % u64::from(self.vocab_size - 2)) as u32;
            if self.overflows == Some(TokenId(drawn)) { TokenId(0) } else { TokenId(drawn) }
        };
        (0..n).map(token).collect()
    }
}

/// A text of the toy, decoded plainly and without blocks: all keys are kept.
#[derive(Clone, Debug)]
pub struct ToyText {
    model: ToyModel,
    tokens: Vec<TokenId>,
    n_prompt: usize,
    /// `[layer][position]`; empty for a layer that owns none.
    keys: Vec<Vec<u64>>,
    /// `[layer]`; 0 for a layer that is not recurrent.
    states: Vec<u64>,
    n_read: usize,
    logits: Vec<f32>,
}

impl ToyText {
    /// Starts with a prompt.
    pub fn new(model: &ToyModel, prompt: &[TokenId]) -> Self {
        let n_layers = model.layers.len();
        Self {
            model: model.clone(),
            tokens: prompt.to_vec(),
            n_prompt: prompt.len(),
            keys: vec![Vec::new(); n_layers],
            states: vec![0; n_layers],
            n_read: 0,
            logits: vec![0.0; model.vocab_size as usize],
        }
    }

    /// Prompt and what followed.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Adds the next token; `None` at an overflow. `end_tokens` are those that `sampling` may keep from coming too early. What came
    /// before is counted anew for each token.
    pub fn extend(&mut self, sampling: &Sampling, end_tokens: &[TokenId]) -> Option<TokenId> {
        self.read_all();
        let (prompt, output) = self.tokens.split_at(self.n_prompt);
        let mut committed = TokenCounts::of_prompt(prompt.iter().map(|token| token.0));
        output.iter().for_each(|token| committed.add_output(token.0));
        let ends: Vec<u32> = end_tokens.iter().map(|token| token.0).collect();
        let rules = RowRules {
            too_early: if output.len() < sampling.min_tokens { &ends } else { &[] },
            seen: Some(Seen { committed: &committed, drafts: &[] }),
            position: self.tokens.len() as u32,
            ..RowRules::new(sampling)
        };
        let token = choose_one(&self.logits, &rules)?;
        self.tokens.push(token);
        Some(token)
    }

    /// Logits of the next token, before any rule.
    pub fn next_logits(&mut self) -> &[f32] {
        self.read_all();
        &self.logits
    }

    fn read_all(&mut self) {
        for position in self.n_read..self.tokens.len() {
            self.read(position);
        }
        self.n_read = self.tokens.len();
    }

    fn read(&mut self, position: usize) {
        let (model, token) = (&self.model, self.tokens[position]);
        let mut hidden = model.embed(token, position);
        for (layer, &kind) in model.layers.iter().enumerate() {
            let source = match kind {
                ToyLayer::Owns { .. } => layer,
                ToyLayer::Shares { layer } => layer,
                ToyLayer::Recurrent => {
                    self.states[layer] = model.step(self.states[layer], hidden);
                    hidden = model.step(hidden, self.states[layer]);
                    continue;
                }
            };
            if source == layer {
                self.keys[layer].push(model.key(hidden, layer));
            }
            let first = ToyModel::first_visible(model.window(source), position);
            hidden = model.attend(hidden, self.keys[source][first..].iter().copied());
        }
        model.logits(hidden, token, position, &mut self.logits);
    }
}

/// The token that `rules` choose from one row of logits.
fn choose_one(logits: &[f32], rules: &RowRules<'_>) -> Option<TokenId> {
    let mut chooser = Chooser::default();
    chooser.reserve(1, logits.len());
    let (isa, mut team) = (Isa::best().0, Team::new(1).expect("a team of the caller alone needs no thread"));
    let mut choice = [Choice::default()];
    chooser.choose(isa, &mut team, &mut logits.to_vec(), |_| *rules, &mut choice);
    (!choice[0].fault).then_some(TokenId(choice[0].token))
}

fn two_largest(values: &[f32]) -> (usize, usize) {
    let largest_but = |skip: Option<usize>| {
        let mut ids = (0..values.len()).filter(|&id| Some(id) != skip);
        let first = ids.next().expect("the vocabulary has at least three entries");
        ids.fold(first, |best, id| if values[id] > values[best] { id } else { best })
    };
    let best = largest_but(None);
    (best, largest_but(Some(best)))
}

/// The toy's text of a token: one to four letters and blanks, so that a short stop string is met by
/// chance and spans tokens. The end token has none.
pub fn toy_text(token: TokenId) -> String {
    if token == TEXT_END {
        return String::new();
    }
    let hash = mix(7, u64::from(token.0));
    let n = 1 + (hash >> 60) % 4;
    (0..n).map(|i| ['a', 'b', 'c', 'd', 'é', ' '][(hash >> (8 * i)) as usize % 6]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_depends_on_every_visible_token_and_on_the_options() {
        let toy = ToyModel::default();
        let prompt = toy.prompt(120, 1);
        let text = toy.decode(&prompt, 20, &[]);
        for at in [0, 60, 119] {
            let mut other = prompt.clone();
            other[at] = TokenId(other[at].0 ^ 1);
            assert_ne!(toy.decode(&other, 20, &[]), text, "token {at} does not matter");
        }
        assert_eq!(ToyModel { near_ties: true, ..toy.clone() }.decode(&prompt, 20, &[]), text);
        let ending = ToyModel { ends_at: vec![125], ..toy.clone() };
        let cut = ending.decode(&prompt, 20, &[TEXT_END]);
        assert_eq!((cut.len(), cut.last()), (6, Some(&TEXT_END)));
        assert!(cut[..5] == text[..5]);
        let only_window = ToyModel { layers: vec![ToyLayer::Owns { window: Some(40) }], ..toy };
        let mut other = prompt.clone();
        other[10] = TokenId(other[10].0 ^ 1);
        assert_eq!(only_window.decode(&other, 20, &[]), only_window.decode(&prompt, 20, &[]));
    }

    #[test]
    fn habits_are_as_frequent_as_asked() {
        let toy = ToyModel::default();
        let prompt = toy.prompt(3, 5);
        let text = toy.decode(&prompt, 400, &[]);
        let n = text.windows(2).filter(|pair| toy.habit(pair[0]) == pair[1]).count();
        assert!((90..200).contains(&n), "{n} of 400");
    }
}
