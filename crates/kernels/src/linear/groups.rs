//! Products with chosen groups of outputs only: a head whose tokens lie in clusters, of which a row looks into a few.

use super::inputs::Preparation;
use super::kernel::Kernel;
use super::packed::TILE;
use super::{CHUNK_PANELS, Context, PackedMatrix, RowsMut, RowsRef, SharedRows};
use crate::numerics::{Activation, PANEL};

/// Bytes of groups that one thread takes in one go: the taking costs as much as reading some ten kilobytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Outputs in groups of equal size, each group at the start of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputGroups {
    /// Outputs of a group.
    pub size: usize,
}

impl OutputGroups {
    /// Index of a group's first output: groups are padded to whole panels.
    pub fn first_output(self, group: usize) -> usize {
        group * self.panels() * PANEL
    }

    fn panels(self) -> usize {
        self.size.div_ceil(PANEL)
    }
}

/// `out[i] = x W_g^T` for the i-th of the `chosen` groups g, one row: `x` is `w.k()` wide, `out` `[chosen][groups.size]`. The bits of
/// an output are those of [`super::linear`].
///
/// # Panics
/// If a size does not fit, a group is outside the matrix, or [`Context::reserve`] was not told of the row.
pub fn linear_groups(
    cx: &mut Context,
    x: &[f32],
    activation: Activation,
    w: &PackedMatrix,
    groups: OutputGroups,
    chosen: &[u32],
    out: &mut [f32],
) {
    assert_eq!(x.len(), w.k(), "input of a product");
    assert_eq!(out.len(), chosen.len() * groups.size, "output of a product with chosen groups");
    let per_group = groups.panels();
    let fits = |&group: &u32| (group as usize + 1) * per_group <= w.panels();
    assert!(chosen.iter().all(fits), "groups {chosen:?} of {} panels", w.panels());
    let Context { isa, team, inputs, blocks, .. } = cx;
    let kernel = Kernel::pick(*isa, activation);
    let how = Preparation { isa: *isa, form: kernel.form(activation), k: w.k() };
    let x = inputs.prepare_rows(team, how, RowsRef::dense(x, w.k()));
    let (blocks, out) = (blocks.share(), SharedRows::new(RowsMut::dense(out, groups.size)));
    let run = |thread, i: usize| {
        let first = chosen[i] as usize * per_group;
        for done in (0..per_group).step_by(CHUNK_PANELS) {
            let panels = first + done..first + per_group.min(done + CHUNK_PANELS);
            // SAFETY: this thread's own block; a thread runs one chunk at a time, and the last result is gone.
            let finished = unsafe { blocks.multiply(thread, kernel, *isa, x, w, panels.clone()) };
            let columns = done * PANEL..groups.size.min((done + panels.len()) * PANEL);
            // SAFETY: row `i` of the output belongs to group `i`, which is in one chunk.
            let out = unsafe { out.part(i, columns.clone()) };
            out.copy_from_slice(&finished.c[..columns.len()]);
        }
    };
    // Small groups are taken several at a time.
    let group_bytes = per_group * w.k_tiles() * TILE * size_of::<u16>();
    let per_chunk = (CHUNK_BYTES / group_bytes.max(1)).max(1);
    team.run(chosen.len().div_ceil(per_chunk), |thread, chunk| {
        (chunk * per_chunk..((chunk + 1) * per_chunk).min(chosen.len())).for_each(|i| run(thread, i));
    });
}
