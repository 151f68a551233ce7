"""The stage `block_cost`: every traced instruction belongs to one part."""

import jax
import jax.numpy as jnp

from experiments.recipes import settings
from experiments.studies import block_cost

PROGRAM = """
%fused_computation.1 (p0: f32[1,8]) -> f32[1,24] {
  ROOT %dot.1 = f32[1,24]{1,0} dot(%p0, %p1), metadata={op_name="Layer.up/dot_general"}
}

ENTRY %main () -> f32[1,64] {
  %named.1 = f32[1,24]{1,0} fusion(%x), calls=%fused_computation.1
  %bare.2 = f32[1,24]{1,0} custom-call(%x)
  %bare.3 = (f32[1,64]{1,0}, s32[]) custom-call(%x)
  %scores.4 = f32[2,4,96]{2,1,0} fusion(%x)
  %noise.5 = f32[1,64]{1,0} fusion(%x), metadata={op_name="jit(f)/add"}
  ROOT %other.6 = s32[3]{0} fusion(%x), metadata={op_name="jit(f)/gather"}
}
"""
SIZES = {block_cost.PRODUCTS: {24}, block_cost.HEAD: {64}, block_cost.ATTENTION: {96}}


def test_instructions_belong_to_parts():
    """By their names; by their sizes where the compiler dropped the name."""
    named = ("named.1", "bare.2", "bare.3", "scores.4", "noise.5", "other.6")
    events = [{"name": name, "dur": 1e3 * 2**i} for i, name in enumerate(named)]
    events += [{"name": "a thread", "dur": 1e9}, {"name": "named.1"}]
    found = block_cost.parts(events, block_cost.names(PROGRAM), SIZES)
    assert found == {
        block_cost.PRODUCTS: 1 + 2,
        block_cost.HEAD: 4,
        block_cost.ATTENTION: 8,
        block_cost.VOCABULARY: 16,
        block_cost.REST: 32,
    }


def test_fault_names_of_computations_are_not_followed():
    """Planted: a fusion has its own name alone, and a product of new size is lost."""
    sizes = {**SIZES, block_cost.PRODUCTS: set()}
    traced = block_cost.names(PROGRAM)
    assert block_cost.part_of(*traced["named.1"], sizes) == block_cost.PRODUCTS
    bare = block_cost.names(PROGRAM.replace("calls=%fused_computation.1", ""))
    assert block_cost.part_of(*bare["named.1"], sizes) != block_cost.PRODUCTS


def test_names_of_a_compiled_program_are_read():
    lowered = jax.jit(lambda x: jnp.sin(x @ x)).lower(jnp.ones((4, 4)))
    found = block_cost.names(lowered.compile().as_text())
    assert any("sin" in name and width == 4 for name, width in found.values())


def test_the_recipe_has_the_fields_of_the_stage():
    recipe = settings.load("configs/studies/block_cost.py")
    assert recipe.stage == "block_cost" and recipe.method == "prompt_lookup"
