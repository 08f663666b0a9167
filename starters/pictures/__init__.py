"""Pictures of coloured shapes for training: any background, texture, stroke, size, angle, aspect ratio and light.

`draw_picture` draws the facts of a picture from what a `Variety` allows, `render` turns it into pixels. Both depend on
their arguments only.
"""
