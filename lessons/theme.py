"""The look of Gradio's own controls, and the colours that our components share. System fonts: nothing is requested.

Colours are CSS variables with a light and a dark value; the components' style sheets name them and hold no colour.
"""

from gradio.themes.base import Base
from gradio.themes.utils import colors, sizes

SANS = (
    "ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "PingFang SC", "Microsoft YaHei",
    "Noto Sans CJK SC", "sans-serif",
)  # fmt: skip
MONO = ("ui-monospace", "SF Mono", "Cascadia Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

ACCENT = colors.Color(
    name="iris",
    c50="#f3f1ff", c100="#e8e4ff", c200="#d3cbff", c300="#b5a7ff", c400="#9580fb", c500="#7558ee", c600="#5f3fd9",
    c700="#4e31b6", c800="#3f2990", c900="#33246f", c950="#1f1547",
)  # fmt: skip
PAPER = colors.Color(
    name="paper",
    c50="#faf9f7", c100="#f3f2ee", c200="#e7e5df", c300="#d3d0c8", c400="#a3a09a", c500="#75736f", c600="#565552",
    c700="#3b3b3d", c800="#22252d", c900="#171a21", c950="#0f1116",
)  # fmt: skip

# name: (light, dark). Text on any of the fills keeps a contrast of at least 4.5.
SHARED = {
    "page": ("#f7f6f2", "#0e1015"),
    "card": ("#ffffff", "#171a21"),
    "sunk": ("#f3f2ed", "#1f232c"),
    "ink": ("#1a1c23", "#eceef3"),
    "muted": ("#5c5e68", "#a2a7b5"),
    "line": ("#e8e6df", "#2a2f3a"),
    "line-strong": ("#c9c6bc", "#464d5c"),
    "accent": ("#5f3fd9", "#a596ff"),
    "accent-soft": ("#efecff", "#262045"),
    "on-accent": ("#ffffff", "#14102b"),
    "pos": ("#1f78d1", "#5aa9f5"),  # positive is blue, negative orange; the sign is always written as well
    "neg": ("#e8720c", "#ff9a45"),
    "pos-ink": ("#0d5ca8", "#8dc5ff"),
    "neg-ink": ("#a34700", "#ffb375"),
    "hover": ("#1a1c23", "#ffffff"),
    "hover-fill": ("#fff3c4", "#4a4115"),
    "ok": ("#14733f", "#62d394"),
    "warn": ("#8a5300", "#f4bd5b"),
    "bad": ("#b3261e", "#ff8d85"),
    "ok-soft": ("#e6f5ec", "#14301f"),
    "warn-soft": ("#fdf1d8", "#352a12"),
    "bad-soft": ("#fdeceb", "#3a1b1a"),
    "edge": ("rgb(30 25 10 / 18%)", "rgb(0 0 0 / 65%)"),
    "shade": ("0 1px 2px rgb(30 25 10 / 5%), 0 6px 24px -12px rgb(30 25 10 / 12%)", "0 1px 2px rgb(0 0 0 / 40%)"),
}


# Gradio's variables that follow ours, in light and dark alike.
FOLLOW = {
    "body_background_fill": "var(--page)",
    "body_text_color": "var(--ink)",
    "body_text_color_subdued": "var(--muted)",
    "background_fill_primary": "var(--card)",
    "background_fill_secondary": "var(--sunk)",
    "block_background_fill": "transparent",
    "block_border_color": "var(--line)",
    "block_title_text_color": "var(--ink)",
    "block_label_text_color": "var(--muted)",
    "block_info_text_color": "var(--muted)",
    "border_color_primary": "var(--line)",
    "border_color_accent": "var(--accent)",
    "input_background_fill": "var(--card)",
    "input_border_color": "var(--line-strong)",
    "input_border_color_focus": "var(--accent)",
    "slider_color": "var(--accent)",
    "panel_background_fill": "transparent",
    "button_primary_background_fill": "var(--accent)",
    "button_primary_background_fill_hover": "var(--accent)",
    "button_primary_text_color": "var(--on-accent)",
    "button_secondary_background_fill": "var(--card)",
    "button_secondary_text_color": "var(--ink)",
    "link_text_color": "var(--accent)",
    "link_text_color_hover": "var(--accent)",
    "link_text_color_visited": "var(--accent)",
}


def shared_css() -> str:
    """The shared colours as CSS variables, light and dark."""
    light, dark = ("\n".join(f"  --{name}: {pair[i]};" for name, pair in SHARED.items()) for i in (0, 1))
    rules = {":root": f"{light}\n  color-scheme: light;", ":root .dark, :root.dark": f"{dark}\n  color-scheme: dark;"}
    return "\n".join(f"{selector} {{\n{body}\n}}" for selector, body in rules.items())


class LessonTheme(Base):
    """Gradio's controls in the lessons' colours."""

    def __init__(self) -> None:
        super().__init__(
            primary_hue=ACCENT,
            secondary_hue=ACCENT,
            neutral_hue=PAPER,
            spacing_size=sizes.spacing_md,
            radius_size=sizes.radius_md,
            text_size=sizes.text_md,
            font=SANS,
            font_mono=MONO,
        )
        self.name = "lessons"
        self.custom_css = shared_css()
        both = FOLLOW | {f"{name}_dark": value for name, value in FOLLOW.items()}
        self.set(
            **both,
            block_border_width="0px",
            block_shadow="none",
            block_shadow_dark="none",
            block_padding="0px",
            block_title_text_weight="500",
            input_border_width="1px",
            input_shadow="none",
            input_shadow_focus="0 0 0 3px var(--accent-soft)",
            layout_gap="14px",
        )
